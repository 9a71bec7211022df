// SPDX-License-Identifier: BSD-3-Clause
#include "common_start.h"

#include <chrono>

namespace lockstep::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Longer than it takes to find the largest of a few numbers.
constexpr std::chrono::microseconds kAhead{5};

}  // namespace

bool can_begin_together(int ranks, int local_ranks, int cores) {
  return ranks == local_ranks && ranks <= cores;
}

void begin_together(const Largest& largest, bool by_clock) {
  const Clock::duration begin(largest((Clock::now() + kAhead).time_since_epoch().count()));
  while (by_clock && Clock::now().time_since_epoch() < begin) {
  }
}

}  // namespace lockstep::bench
