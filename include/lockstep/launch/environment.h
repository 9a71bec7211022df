// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <lockstep/base/env.h>
#include <lockstep/launch/options.h>

namespace lockstep::launch {

/// What one node's ranks are in one attempt of a run.
struct NodePlace {
  int attempt = 0;    ///< counts every start, those after a change of nodes too
  int restarts = 0;   ///< TORCHELASTIC_RESTART_COUNT: starts after failures
  int node_rank = 0;  ///< GROUP_RANK
  int nodes = 1;      ///< GROUP_WORLD_SIZE
  int first_rank = 0;
  int world_size = 1;
  int first_role_rank = 0;  ///< among the ranks of nodes with this node's role
  int role_world_size = 1;
  std::string master_addr{};
  std::uint16_t master_port = 0;
};

/// The variables to set for the rank `local_rank` of this node, on top of `inherited`: those that torchrun
/// sets, with the same meaning. Two differences: OMP_NUM_THREADS, where the user set none, is `threads`
/// (torchrun: 1), and TORCHELASTIC_USE_AGENT_STORE is always False, because rank 0 hosts the store.
/// Throws ArgumentError when virtual_local_rank finds too few GPUs in CUDA_VISIBLE_DEVICES.
std::map<std::string, std::string> rank_environment(const LaunchOptions& options, const NodePlace& place,
                                                    int local_rank, int threads, const Env& inherited);

/// The program's arguments for that rank: --local-rank=K where it is asked for, and ${local_rank} filled in.
std::vector<std::string> rank_arguments(const LaunchOptions& options, int local_rank);

}  // namespace lockstep::launch
