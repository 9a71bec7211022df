// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include <lockstep/base/env.h>
#include <lockstep/launch/options.h>

namespace lockstep::launch {

/// What only the machine knows, resolved before the ranks' environment is made.
struct Resources {
  std::uint16_t master_port = 0;
  int cores = 1;  ///< cores that this node's ranks share
};

/// The variables to set for the rank `local_rank` of this node, on top of `inherited`: those that torchrun
/// sets, with the same meaning. Two differences: OMP_NUM_THREADS, where the user set none, is the rank's
/// share of the cores (torchrun: 1), and TORCHELASTIC_USE_AGENT_STORE is always False, because rank 0 hosts
/// the store.
std::map<std::string, std::string> rank_environment(const LaunchOptions& options, const Resources& resources,
                                                    int local_rank, const Env& inherited);

/// RANK of the rank `local_rank` of this node.
int global_rank(const LaunchOptions& options, int local_rank);

}  // namespace lockstep::launch
