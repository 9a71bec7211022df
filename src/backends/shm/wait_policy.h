// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>

namespace lockstep::shm {

// How a rank waits: it spins, then lets others run, then sleeps until it is woken or has napped enough to
// look whether everybody is still alive.
struct WaitPolicy {
  int tries = 64;  // before the clock is looked at
  std::chrono::microseconds spin{100};
  int yields = 0;  // counted, not timed: on a busy machine one may take a whole time slice
  std::chrono::microseconds nap{5'000};

  // For ranks that each have a core to themselves, or that have to share.
  static WaitPolicy for_cores(int ranks, int cores) {
    using std::chrono::microseconds;
    if (ranks <= cores) return {};
    return {.tries = 2, .spin = microseconds(0), .yields = 200, .nap = microseconds(5'000)};
  }
};

// Tells the core that this is a loop that waits.
inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace lockstep::shm
