// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>

namespace lockstep {

// Called every 20 ms or more often by threads that wait for other ranks, if set; an exception ends the wait.
// Python's signal handlers run there.
inline std::atomic<void (*)()> wait_check{nullptr};

inline void check_wait() {
  if (const auto check = wait_check.load(std::memory_order_relaxed)) check();
}

}  // namespace lockstep
