// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <mutex>
#include <vector>

#include <c10/util/ArrayRef.h>

#include <lockstep/base/mutex.h>
#include <lockstep/node/call_record.h>

#include "node/rank_status.h"

namespace lockstep::node {

// The data of a new call that the recorder stores.
struct CallDraft {
  CallKind kind = CallKind::barrier;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  c10::IntArrayRef shape = {};
  std::optional<ReduceOp> op = {};
  int root = -1;
  int peer = -1;  // of a message; -1: any
  std::source_location where = {};
  std::string_view contents = {};
  int index = -1;
};

// The last calls of one process group, numbered. Safe from any thread.
class FlightRecorder {
 public:
  static constexpr std::size_t kKept = 128;

  // With a rank status, other ranks can read what this rank is doing.
  explicit FlightRecorder(RankStatus* status = nullptr) : status_(status) {}

  // Fills in number and time, keeps a copy and returns it.
  CallRecord add(CallRecord record);
  // Does nothing when the record has already been overwritten.
  void set_state(std::uint64_t number, CallState state);
  // The number of the call that the rank waits for, or 0.
  void set_awaited(std::uint64_t number);
  std::uint64_t last_number() const;
  // Detaches the rank status, which may be destroyed afterwards.
  void detach_status();
  // Oldest first.
  std::vector<CallRecord> recent() const;

  // Records a call that usually completes immediately, and locks the recorder only once. Clang does not follow the
  // pauses: whoever uses the lock calls only pause(), resume() and end() during one.
  class RecorderLock {
   public:
    explicit RecorderLock(FlightRecorder& log) : log_(log), lock_(log.mutex_) {}

    // Takes the call's number. note() writes its record without allocating memory.
    std::uint64_t begin(const CallDraft& draft) LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS;
    // Writes the record and the rank status, with the current time as the time of the call. Call it before
    // the first pause.
    void note(std::uint64_t number, const CallDraft& draft) LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS;
    // Shows the other ranks that this rank waits for the call, until it is complete.
    void await(std::uint64_t number) LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS;
    void complete(std::uint64_t number) LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS;
    // The record of a call that note() wrote under this lock. Before the first pause.
    CallRecord record(std::uint64_t number) const LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS {
      return log_.ring_[number % kKept];
    }
    // Between the two, other threads may use the recorder.
    void pause() {
      if (lock_.owns_lock()) lock_.unlock();
    }
    void resume() {
      if (!lock_.owns_lock()) lock_.lock();
    }
    // The number of the group's next collective. Before its note().
    std::uint64_t next_collective() const LOCKSTEP_NO_THREAD_SAFETY_ANALYSIS { return log_.collectives_ + 1; }
    // Call it before other uses of the recorder, and before a long wait.
    void end() { pause(); }

   private:
    FlightRecorder& log_;
    std::unique_lock<Mutex> lock_;
  };

 private:
  void note(CallRecord& record, int peer) LOCKSTEP_REQUIRES(mutex_);
  void note_completed(std::uint64_t number) LOCKSTEP_REQUIRES(mutex_);

  mutable Mutex mutex_;
  RankStatus* status_ LOCKSTEP_GUARDED_BY(mutex_);
  FileName file_ LOCKSTEP_GUARDED_BY(mutex_);
  std::uint64_t last_number_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::uint64_t collectives_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::uint64_t messages_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::array<CallRecord, kKept> ring_ LOCKSTEP_GUARDED_BY(mutex_){};
};

}  // namespace lockstep::node
