// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <mutex>
#include <vector>

#include <lockstep/comm/call_record.h>

namespace lockstep::comm {

struct NoteBoard;

// The last calls of one process group, numbered. Safe from any thread.
class CallLog {
 public:
  static constexpr std::size_t kKept = 128;

  // Where there is a board, other ranks read there what this one does.
  explicit CallLog(NoteBoard* board = nullptr) : board_(board) {}

  // Fills in number and time, keeps a copy and returns it.
  CallRecord add(CallRecord record);
  // Does nothing when the record has already been overwritten.
  void set_state(std::uint64_t number, CallState state);
  // What the rank waits for, or 0.
  void set_awaited(std::uint64_t number);
  std::uint64_t last_number() const;
  // Writes no more to the board, which may go away.
  void leave_board();
  // Oldest first.
  std::vector<CallRecord> recent() const;

 private:
  NoteBoard* board_;
  mutable std::mutex mutex_;
  std::uint64_t last_number_ = 0;
  std::array<CallRecord, kKept> ring_{};
};

}  // namespace lockstep::comm
