// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/env.h"
#include "launch/options.h"

namespace lockstep::launch {

// The numbers of one node's ranks in one attempt of a run.
struct NodeAssignment {
  int attempt = 0;    // counts every start, including those after a change of nodes
  int restarts = 0;   // TORCHELASTIC_RESTART_COUNT: starts after failures
  int node_rank = 0;  // GROUP_RANK
  int nodes = 1;      // GROUP_WORLD_SIZE
  int first_rank = 0;
  int world_size = 1;
  int first_role_rank = 0;  // in the nodes with this node's role
  int role_world_size = 1;
  std::string master_addr{};
  std::uint16_t master_port = 0;
  std::uint16_t store_port = 0;  // of the launcher of node 0, at master_addr; 0: it serves no store
  std::string store_token{};     // for that store
  int epoch =
      0;  // how often another launcher has taken the node's place in this attempt; above 0: its ranks are replacements
};

// The variables for rank `local_rank` of this node, in addition to `inherited`: those of torchrun. Two
// differences: OMP_NUM_THREADS, unless the user has set it, is `threads` (torchrun: 1), and
// TORCHELASTIC_USE_AGENT_STORE is always False, because rank 0 hosts the store. Throws ArgumentError when
// virtual_local_rank finds too few GPUs in CUDA_VISIBLE_DEVICES.
std::map<std::string, std::string> rank_environment(const LaunchOptions& options,
                                                    const NodeAssignment& assignment, int local_rank,
                                                    int threads, const Env& inherited);

// Those of a rank of this node whose number is not known yet: without RANK, LOCAL_RANK, ROLE_RANK and
// TORCHELASTIC_RESTART_COUNT. REQUIRES no virtual_local_rank.
std::map<std::string, std::string> spare_environment(const LaunchOptions& options,
                                                     const NodeAssignment& assignment, int threads,
                                                     const Env& inherited);

// The program's arguments for that rank, with --local-rank=K if requested, and ${local_rank} replaced.
std::vector<std::string> rank_arguments(const LaunchOptions& options, int local_rank);

// `text` with each ${name} in `values` replaced by its value; others stay. PyTorch:
// string.Template.safe_substitute, in torch.distributed.elastic.utils.macros and log prefixes.
std::string substitute_variables(const std::string& text, const std::map<std::string, std::string>& values);

// Throws ArgumentError unless `name` is one of "default", "tuned", "jemalloc" and "tcmalloc".
void check_allocator(const std::string& name);

// The variables that select the memory allocator of a rank, in addition to `inherited`:
//
// - default: none; the allocator of the system, with the settings of lockstep::init().
// - tuned: the C library's allocator keeps freed memory, large tensors included, for the next step. Other
//   programs cannot use that memory.
// - jemalloc, tcmalloc: LD_PRELOAD of that library. Throws LaunchError naming the package if it is not
//   installed.
//
// PyTorch: --enable-jemalloc and --enable-tcmalloc of torch.backends.xeon.run_cpu.
std::map<std::string, std::string> allocator_environment(const std::string& name, const Env& inherited);

}  // namespace lockstep::launch
