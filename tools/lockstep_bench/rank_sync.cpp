// SPDX-License-Identifier: BSD-3-Clause
#include "rank_sync.h"

#include <cerrno>
#include <chrono>
#include <sched.h>

#include <fmt/format.h>

#include <lockstep/base/error.h>

namespace lockstep::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Longer than an all-reduce of one number.
constexpr std::chrono::microseconds kStartDelay{5};

void check(int result, const char* call) {
  if (result == 0) return;
  throw Error(fmt::format("cannot bind this rank to a core: {}: {}; use --no-bind", call, errno_text(errno)));
}

}  // namespace

void bind_to_core(int local_rank) {
  cpu_set_t usable;
  CPU_ZERO(&usable);
  check(::sched_getaffinity(0, sizeof(usable), &usable), "sched_getaffinity");
  int skip = local_rank % CPU_COUNT(&usable);
  int core = 0;
  while (!CPU_ISSET(core, &usable) || skip-- > 0) ++core;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  check(::sched_setaffinity(0, sizeof(one), &one), "sched_setaffinity");
}

bool can_start_together(int ranks, int local_ranks, int cores) {
  return ranks == local_ranks && ranks <= cores;
}

void start_together(const MaxOverRanks& max_over_ranks, bool by_clock) {
  const Clock::duration start(max_over_ranks((Clock::now() + kStartDelay).time_since_epoch().count()));
  while (by_clock && Clock::now().time_since_epoch() < start) {
  }
}

}  // namespace lockstep::bench
