// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

namespace lockstep::comm {

// A thread of ours has one while it may need Python's GIL: it runs callbacks, or drops tensors, which may
// have Python objects.
class GilUse {
 public:
  GilUse() { ++uses; }
  ~GilUse() { --uses; }
  GilUse(const GilUse&) = delete;
  GilUse& operator=(const GilUse&) = delete;

  // Whether the thread may wait for the GIL. If not, it leaks what it has to drop.
  bool is_allowed() const { return !have_ended(); }

  static bool have_ended() { return ended; }
  // For an interpreter that ends: a thread that waits for its GIL would then end the process. From now on no
  // use is allowed. Returns when there is none, at the latest after `limit`.
  static void end_all(std::chrono::milliseconds limit) {
    using Clock = std::chrono::steady_clock;
    ended = true;
    const auto deadline = Clock::now() + limit;
    while (uses > 0 && Clock::now() < deadline) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }

 private:
  static inline std::atomic<bool> ended{false};
  static inline std::atomic<int> uses{0};
};

}  // namespace lockstep::comm
