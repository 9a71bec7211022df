// SPDX-License-Identifier: BSD-3-Clause
#include "common_start.h"

#include <chrono>
#include <unistd.h>

namespace lockstep::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::microseconds kPeriod{10};

}  // namespace

// Not the cores that this process may use, to one of which it may be bound by now.
CommonStart::CommonStart(int ranks, int local_ranks)
    : by_clock_(ranks > 1 && ranks == local_ranks && ranks <= ::sysconf(_SC_NPROCESSORS_ONLN)) {}

void CommonStart::wait() const {
  if (!by_clock_) return;
  const auto now = Clock::now().time_since_epoch();
  const auto begin = now - now % kPeriod + kPeriod;
  while (Clock::now().time_since_epoch() < begin) {
  }
}

}  // namespace lockstep::bench
