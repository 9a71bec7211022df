// SPDX-License-Identifier: BSD-3-Clause
#include "rank.h"

#include <cerrno>
#include <chrono>
#include <sched.h>

#include "base/host.h"
#include "base/throw_error.h"

namespace lockstep::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Longer than an all-reduce of one number.
constexpr std::chrono::microseconds kStartDelay{5};

}  // namespace

void bind_to_core(int local_rank) {
  const auto cpus = affinity_cpus();
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpus[static_cast<std::size_t>(local_rank) % cpus.size()], &one);
  if (::sched_setaffinity(0, sizeof(one), &one) == 0) return;
  throw_error<Error>("cannot bind this rank to a core: sched_setaffinity: {}; use --no-bind",
                     errno_text(errno));
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
