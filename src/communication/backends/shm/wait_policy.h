// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>

namespace lockstep::shm {

// How a rank waits: it spins, then yields, then sleeps until it is woken or its nap ends and it checks that
// all ranks are alive.
struct WaitPolicy {
  int tries = 64;  // before the clock is read
  std::chrono::microseconds spin{100};
  int yields = 0;  // counted, not timed: on a busy machine one may take a whole time slice
  std::chrono::microseconds nap{5'000};

  // For ranks that each have their own core, or that share cores.
  static WaitPolicy for_cores(int ranks, int cores) {
    if (ranks <= cores) return {};
    return {.tries = 2, .spin = std::chrono::microseconds(0), .yields = 200};
  }

  // For ranks that each have a thread of a network beside them, which gets the core at once.
  static WaitPolicy beside_network(int ranks, int cores) {
    if (2 * ranks <= cores) return {};
    return {.tries = 2, .spin = std::chrono::microseconds(0)};
  }
};

// Marks a wait loop for the core.
inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace lockstep::shm
