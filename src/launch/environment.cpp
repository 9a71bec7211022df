// SPDX-License-Identifier: BSD-3-Clause
#include <cstdlib>
#include <sstream>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/launch/allocator_environment.h>
#include <lockstep/launch/environment.h>
#include <lockstep/launch/template_text.h>

namespace lockstep::launch {
namespace {

// The entry of CUDA_VISIBLE_DEVICES for one rank.
std::string own_gpu(int local_rank, const Env& inherited) {
  const auto list = inherited.get("CUDA_VISIBLE_DEVICES");
  // For CUDA the empty value hides all devices; for Env it is no value.
  const char* set = std::getenv("CUDA_VISIBLE_DEVICES");
  if (!list && set != nullptr && *set == '\0') {
    throw ArgumentError("virtual-local-rank: CUDA_VISIBLE_DEVICES is empty, which hides all GPUs");
  }
  if (!list) return std::to_string(local_rank);
  std::istringstream entries(*list);
  std::string entry;
  for (int index = 0; std::getline(entries, entry, ','); ++index) {
    if (index < local_rank) continue;
    std::erase(entry, ' ');
    return entry;
  }
  throw ArgumentError(fmt::format("virtual-local-rank: local rank {} finds no GPU in CUDA_VISIBLE_DEVICES={}",
                                  local_rank, *list));
}

std::map<std::string, std::string> own_device(const LaunchOptions& options, int local_rank,
                                              const Env& inherited) {
  if (!options.virtual_local_rank) return {{"LOCAL_RANK", std::to_string(local_rank)}};
  return {{"LOCAL_RANK", "0"}, {"CUDA_VISIBLE_DEVICES", own_gpu(local_rank, inherited)}};
}

}  // namespace

std::map<std::string, std::string> rank_environment(const LaunchOptions& options, const NodePlace& place,
                                                    int local_rank, int threads, const Env& inherited) {
  std::map<std::string, std::string> env{
      {"RANK", std::to_string(place.first_rank + local_rank)},
      {"GROUP_RANK", std::to_string(place.node_rank)},
      {"ROLE_RANK", std::to_string(place.first_role_rank + local_rank)},
      {"ROLE_NAME", options.role},
      {"LOCAL_WORLD_SIZE", std::to_string(options.nproc_per_node)},
      {"WORLD_SIZE", std::to_string(place.world_size)},
      {"GROUP_WORLD_SIZE", std::to_string(place.nodes)},
      {"ROLE_WORLD_SIZE", std::to_string(place.role_world_size)},
      {"MASTER_ADDR", place.master_addr},
      {"MASTER_PORT", std::to_string(place.master_port)},
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(place.restarts)},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(options.max_restarts)},
      {"TORCHELASTIC_RUN_ID", options.run_id},
      // Set rather than left out: it may be inherited from a torchrun that started this launcher.
      {"TORCHELASTIC_USE_AGENT_STORE", "False"},
  };
  env.merge(own_device(options, local_rank, inherited));
  env.merge(allocator_environment(options.memory_allocator, inherited));
  if (!inherited.has("TORCH_NCCL_ASYNC_ERROR_HANDLING")) env.emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  if (!inherited.has("OMP_NUM_THREADS")) env.emplace("OMP_NUM_THREADS", std::to_string(threads));
  return env;
}

std::vector<std::string> rank_arguments(const LaunchOptions& options, int local_rank) {
  const std::string number = std::to_string(local_rank);
  std::vector<std::string> arguments;
  for (const auto& word : options.command) arguments.push_back(filled_in(word, {{"local_rank", number}}));
  if (options.pass_local_rank) {
    arguments.insert(arguments.begin() + options.program_words, "--local-rank=" + number);
  }
  return arguments;
}

}  // namespace lockstep::launch
