// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <mutex>
#include <vector>

#include <c10/util/ArrayRef.h>

#include <lockstep/node/call_record.h>

#include "node/rank_status.h"

namespace lockstep::node {

// A call that is about to be made, as the log takes it down.
struct CallDraft {
  CallKind kind = CallKind::barrier;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  c10::IntArrayRef shape = {};
  std::optional<ReduceOp> op = {};
  int root = -1;
  std::source_location where = {};
};

// The last calls of one process group, numbered. Safe from any thread.
class FlightRecorder {
 public:
  static constexpr std::size_t kKept = 128;

  // Where there is a board, other ranks read there what this one does.
  explicit FlightRecorder(RankStatus* board = nullptr) : status_(board) {}

  // Fills in number and time, keeps a copy and returns it.
  CallRecord add(CallRecord record);
  // Does nothing when the record has already been overwritten.
  void set_state(std::uint64_t number, CallState state);
  // What the rank waits for, or 0.
  void set_awaited(std::uint64_t number);
  std::uint64_t last_number() const;
  // Writes no more to the board, which may go away.
  void detach_status();
  // Oldest first.
  std::vector<CallRecord> recent() const;

  // The whole of a call that is most often done at once, with the log locked once.
  class Turn {
   public:
    explicit Turn(FlightRecorder& log) : log_(log), lock_(log.mutex_) {}

    // Takes the call's number. Its record is written by note(), which then asks for no memory.
    std::uint64_t begin(const CallDraft& draft);
    // Before the first pause: writes the record and tells the other ranks, with the present as the time at
    // which the call was made.
    void note(std::uint64_t number, const CallDraft& draft);
    // The other ranks see that it is waited for, until it is complete.
    void await(std::uint64_t number);
    void complete(std::uint64_t number);
    // The record of a call that note() wrote in this turn. Before the first pause.
    CallRecord record(std::uint64_t number) const { return log_.ring_[number % kKept]; }
    // Between the two the log is free for others.
    void pause() {
      if (lock_.owns_lock()) lock_.unlock();
    }
    void resume() {
      if (!lock_.owns_lock()) lock_.lock();
    }
    // Before the log is asked for anything else, and before a long wait.
    void end() { pause(); }

   private:
    FlightRecorder& log_;
    std::unique_lock<std::mutex> lock_;
  };

 private:
  void note(CallRecord& record);
  void note_completed(std::uint64_t number);

  RankStatus* status_;
  FileName file_;
  mutable std::mutex mutex_;
  std::uint64_t last_number_ = 0;
  std::array<CallRecord, kKept> ring_{};
};

}  // namespace lockstep::node
