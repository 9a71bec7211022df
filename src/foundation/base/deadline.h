// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>

namespace lockstep {

// A point on the steady clock after which waiting is over.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Deadline(std::chrono::milliseconds timeout) : timeout_(timeout), end_(Clock::now() + timeout) {}

  bool expired() const { return Clock::now() >= end_; }
  std::chrono::milliseconds remaining() const {
    return std::max(std::chrono::milliseconds(0),
                    std::chrono::duration_cast<std::chrono::milliseconds>(end_ - Clock::now()));
  }
  // The whole span that was allowed, for messages.
  std::chrono::milliseconds timeout() const { return timeout_; }

 private:
  std::chrono::milliseconds timeout_;
  Clock::time_point end_;
};

// Called every 20 ms or more often by threads that wait for other ranks, if set; an exception ends the wait.
// Python's signal handlers run there.
inline std::atomic<void (*)()> wait_check{nullptr};

inline void check_wait() {
  if (const auto check = wait_check.load(std::memory_order_relaxed)) check();
}

}  // namespace lockstep
