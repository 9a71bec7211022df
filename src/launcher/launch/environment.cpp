// SPDX-License-Identifier: BSD-3-Clause
#include "launch/environment.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "base/run_memory.h"
#include "base/text.h"
#include "base/throw_error.h"
#include "launch/launch_limits.h"
#include "launch/spare.h"

namespace lockstep::launch {
namespace {

// The entry of CUDA_VISIBLE_DEVICES for one rank.
std::string visible_gpu(int local_rank, const Env& inherited) {
  const auto list = inherited.get("CUDA_VISIBLE_DEVICES");
  // An empty value hides all devices; Env treats it as unset.
  const char* set = std::getenv("CUDA_VISIBLE_DEVICES");
  if (!list && set != nullptr && *set == '\0') {
    throw ArgumentError(
        "virtual-local-rank: CUDA_VISIBLE_DEVICES is empty, which hides all GPUs; unset it, or list one GPU "
        "per local rank");
  }
  if (!list) return std::to_string(local_rank);
  auto entries = split(*list, ',');
  if (local_rank < static_cast<int>(entries.size())) {
    std::erase(entries[static_cast<std::size_t>(local_rank)], ' ');
    return entries[static_cast<std::size_t>(local_rank)];
  }
  throw_error<ArgumentError>(
      "virtual-local-rank: CUDA_VISIBLE_DEVICES={1} has no GPU for local rank {0}; list one GPU per local "
      "rank, or lower nproc-per-node",
      local_rank, *list);
}

std::map<std::string, std::string> device_variables(const LaunchOptions& options, int local_rank,
                                                    const Env& inherited) {
  if (!options.virtual_local_rank) return {{"LOCAL_RANK", std::to_string(local_rank)}};
  return {{"LOCAL_RANK", "0"}, {"CUDA_VISIBLE_DEVICES", visible_gpu(local_rank, inherited)}};
}

}  // namespace

std::map<std::string, std::string> rank_environment(const LaunchOptions& options,
                                                    const NodeAssignment& assignment, int local_rank,
                                                    int threads, const Env& inherited) {
  std::map<std::string, std::string> env{
      {"RANK", std::to_string(assignment.first_rank + local_rank)},
      {"GROUP_RANK", std::to_string(assignment.node_rank)},
      {"ROLE_RANK", std::to_string(assignment.first_role_rank + local_rank)},
      {"ROLE_NAME", options.role},
      {"LOCAL_WORLD_SIZE", std::to_string(options.nproc_per_node)},
      {"WORLD_SIZE", std::to_string(assignment.world_size)},
      {"GROUP_WORLD_SIZE", std::to_string(assignment.nodes)},
      {"ROLE_WORLD_SIZE", std::to_string(assignment.role_world_size)},
      {"MASTER_ADDR", assignment.master_addr},
      {"MASTER_PORT", std::to_string(assignment.master_port)},
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(assignment.restarts)},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(options.max_restarts)},
      {"TORCHELASTIC_RUN_ID", options.run_id},
      // Overrides the value of a torchrun that started this launcher.
      {"TORCHELASTIC_USE_AGENT_STORE", "False"},
  };
  env.merge(device_variables(options, local_rank, inherited));
  env.merge(allocator_environment(options.memory_allocator, inherited));
  if (!inherited.has("TORCH_NCCL_ASYNC_ERROR_HANDLING")) env.emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  // Ranks do not need it, and programs log their environment.
  if (inherited.has("LOCKSTEP_SECRET")) env.emplace("LOCKSTEP_SECRET", "");
  // Those of a launcher above this one, of whose run these ranks are not.
  for (const char* name : {RunMemory::kVariable, Spare::kVariable}) {
    if (inherited.has(name)) env.emplace(name, "");
  }
  const auto limits = limits_for_ranks(options).text();
  if (!limits.empty() || inherited.has(LauncherLimits::kVariable))
    env.emplace(LauncherLimits::kVariable, limits);
  if (!inherited.has("OMP_NUM_THREADS")) env.emplace("OMP_NUM_THREADS", std::to_string(threads));
  return env;
}

std::map<std::string, std::string> spare_environment(const LaunchOptions& options,
                                                     const NodeAssignment& assignment, int threads,
                                                     const Env& inherited) {
  auto env = rank_environment(options, assignment, 0, threads, inherited);
  for (const char* name : {"RANK", "LOCAL_RANK", "ROLE_RANK", "TORCHELASTIC_RESTART_COUNT"}) {
    env.erase(name);
    if (inherited.has(name)) env.emplace(name, "");
  }
  return env;
}

std::vector<std::string> rank_arguments(const LaunchOptions& options, int local_rank) {
  const std::string number = std::to_string(local_rank);
  std::vector<std::string> arguments;
  for (const auto& word : options.command)
    arguments.push_back(substitute_variables(word, {{"local_rank", number}}));
  if (options.pass_local_rank) {
    arguments.insert(arguments.begin() + options.program_words, "--local-rank=" + number);
  }
  return arguments;
}

std::string substitute_variables(const std::string& text, const std::map<std::string, std::string>& values) {
  std::string filled;
  std::size_t at = 0;
  while (at < text.size()) {
    const auto start = text.find("${", at);
    const auto end = start == std::string::npos ? std::string::npos : text.find('}', start);
    if (end == std::string::npos) break;
    const auto value = values.find(text.substr(start + 2, end - start - 2));
    filled.append(text, at, start - at);
    filled += value == values.end() ? text.substr(start, end + 1 - start) : value->second;
    at = end + 1;
  }
  return filled.append(text, at);
}

namespace {

struct PreloadedAllocator {
  const char* name;
  std::array<const char*, 2> files;
  const char* package;
};

constexpr std::array kPreloaded{
    PreloadedAllocator{"jemalloc", {"libjemalloc.so.2", "libjemalloc.so.1"}, "libjemalloc2"},
    PreloadedAllocator{"tcmalloc", {"libtcmalloc.so.4", "libtcmalloc_minimal.so.4"}, "libtcmalloc-minimal4"},
};

// Library folders of Debian, Fedora and local builds.
std::vector<std::filesystem::path> library_folders() {
  std::vector<std::filesystem::path> folders;
#if defined(__x86_64__)
  folders.emplace_back("/usr/lib/x86_64-linux-gnu");
#elif defined(__aarch64__)
  folders.emplace_back("/usr/lib/aarch64-linux-gnu");
#endif
  for (const char* folder : {"/usr/lib64", "/usr/lib", "/usr/local/lib"}) folders.emplace_back(folder);
  return folders;
}

std::optional<std::string> find_library(const PreloadedAllocator& allocator) {
  for (const auto& folder : library_folders()) {
    for (const char* file : allocator.files) {
      std::error_code ignored;
      if (std::filesystem::exists(folder / file, ignored)) return (folder / file).string();
    }
  }
  return std::nullopt;
}

std::map<std::string, std::string> preload(const PreloadedAllocator& allocator, const Env& inherited) {
  const auto library = find_library(allocator);
  if (!library) {
    throw_error<LaunchError>("memory-allocator {}: {} was not found; on Debian: apt-get install {}",
                             allocator.name, allocator.files.front(), allocator.package);
  }
  const auto before = inherited.get("LD_PRELOAD");
  return {{"LD_PRELOAD", before ? *library + ":" + *before : *library}};
}

}  // namespace

void check_allocator(const std::string& name) {
  if (name == "default" || name == "tuned") return;
  if (std::ranges::any_of(kPreloaded, [&](const auto& known) { return name == known.name; })) return;
  throw_error<ArgumentError>("memory-allocator {}: use default, tuned, jemalloc or tcmalloc", name);
}

std::map<std::string, std::string> allocator_environment(const std::string& name, const Env& inherited) {
  check_allocator(name);
  if (name == "default") return {};
  if (name == "tuned")
    return {{"MALLOC_MMAP_MAX_", "0"},
            {"MALLOC_TRIM_THRESHOLD_", "17179869184"},
            {"MALLOC_TOP_PAD_", "67108864"},
            {"MALLOC_ARENA_MAX", "1"}};
  return preload(*std::ranges::find_if(kPreloaded, [&](const auto& known) { return name == known.name; }),
                 inherited);
}

}  // namespace lockstep::launch
