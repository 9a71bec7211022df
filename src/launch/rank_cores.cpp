// SPDX-License-Identifier: BSD-3-Clause
#include "launch/rank_cores.h"

#include <algorithm>

#include <lockstep/base/host.h>

namespace lockstep::launch {

RankCores::RankCores(const LaunchOptions& options)
    : cpus_(machine::assign_cores(machine::read_cores(), options.nproc_per_node, options.bind)),
      share_(std::max(1, usable_cores() / options.nproc_per_node)) {}

// A quota may allow less than all of the CPUs that the rank is bound to.
int RankCores::threads(int local_rank) const {
  const int bound = static_cast<int>(cpus(local_rank).size());
  return bound == 0 ? share_ : std::min(bound, share_ + 1);
}

}  // namespace lockstep::launch
