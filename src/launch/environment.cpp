// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>

#include <lockstep/launch/environment.h>

namespace lockstep::launch {

int global_rank(const LaunchOptions& options, int local_rank) {
  return options.node_rank * options.nproc_per_node + local_rank;
}

std::map<std::string, std::string> rank_environment(const LaunchOptions& options, const Resources& resources,
                                                    int local_rank, const Env& inherited) {
  const std::string rank = std::to_string(global_rank(options, local_rank));
  const std::string world_size = std::to_string(options.nnodes * options.nproc_per_node);
  std::map<std::string, std::string> env{
      {"LOCAL_RANK", std::to_string(local_rank)},
      {"RANK", rank},
      {"GROUP_RANK", std::to_string(options.node_rank)},
      {"ROLE_RANK", rank},
      {"ROLE_NAME", "default"},
      {"LOCAL_WORLD_SIZE", std::to_string(options.nproc_per_node)},
      {"WORLD_SIZE", world_size},
      {"GROUP_WORLD_SIZE", std::to_string(options.nnodes)},
      {"ROLE_WORLD_SIZE", world_size},
      {"MASTER_ADDR", options.master_addr},
      {"MASTER_PORT", std::to_string(resources.master_port)},
      {"TORCHELASTIC_RESTART_COUNT", "0"},
      {"TORCHELASTIC_MAX_RESTARTS", "0"},
      {"TORCHELASTIC_RUN_ID", options.run_id},
      // Set rather than left out: it may be inherited from a torchrun that started this launcher.
      {"TORCHELASTIC_USE_AGENT_STORE", "False"},
  };
  if (!inherited.has("TORCH_NCCL_ASYNC_ERROR_HANDLING")) env.emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  if (!inherited.has("OMP_NUM_THREADS")) {
    env.emplace("OMP_NUM_THREADS", std::to_string(std::max(1, resources.cores / options.nproc_per_node)));
  }
  return env;
}

}  // namespace lockstep::launch
