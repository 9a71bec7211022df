// SPDX-License-Identifier: BSD-3-Clause
#include "launch/run_notes.h"

#include <algorithm>

namespace lockstep::launch {

void RunNotes::note_kill(pid_t rank, std::string_view reason) {
  withdraw_kill(rank);  // of a process that had the pid before
  auto& kill = kills_.at(next_++ % kills_.size());
  kill.rank.store(0, std::memory_order_release);
  kill.reason = {};
  std::ranges::copy(reason.substr(0, kill.reason.size() - 1), kill.reason.begin());
  kill.rank.store(rank, std::memory_order_release);
}

void RunNotes::withdraw_kill(pid_t rank) {
  for (auto& kill : kills_)
    if (kill.rank == rank) kill.rank = 0;
}

std::string RunNotes::kill_reason(pid_t rank) const {
  for (const auto& kill : kills_)
    if (kill.rank.load(std::memory_order_acquire) == rank) return kill.reason.data();
  return {};
}

}  // namespace lockstep::launch
