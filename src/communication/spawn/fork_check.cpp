// SPDX-License-Identifier: BSD-3-Clause
#include "spawn/fork_check.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>
#include <lockstep/base/world.h>
#include <lockstep/runtime/default_group.h>

#include "base/deadline.h"
#include "base/env.h"
#include "base/throw_error.h"
#include "runtime/intra_op_threads.h"

namespace lockstep::spawning {
namespace {

namespace fs = std::filesystem;

// A joined thread is visible a moment longer, and a worker spins before it sleeps.
constexpr std::chrono::milliseconds kThreadsEnd{500};

// "loader (thread 123)"
std::string name_of_thread(const fs::path& task) {
  std::string name;
  std::getline(std::ifstream(task / "comm"), name);
  return fmt::format("\"{}\" (thread {})", name, task.filename().string());
}

std::vector<std::string> foreign_threads() {
  const std::string self = std::to_string(::gettid());
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/proc/self/task", ignored)) {
    const auto thread = entry.path().filename().string();
    if (thread != self && !runtime::survives_a_fork(std::stoi(thread)))
      names.push_back(name_of_thread(entry.path()));
  }
  std::ranges::sort(names);
  return names;
}

void refuse_threads() {
  const Deadline deadline(kThreadsEnd);
  auto names = foreign_threads();
  while (!names.empty() && !deadline.expired()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    names = foreign_threads();
  }
  if (names.empty()) return;
  throw_error<ArgumentError>(
      "spawn: this process has {} other thread{}, which do not exist in a forked rank; it could deadlock on "
      "their locks: {}. End their owner (a loader, a store, a thread pool) before spawn(), call spawn() "
      "earlier, or start the program with `lockstep run`",
      names.size(), names.size() == 1 ? "" : "s", fmt::join(names, ", "));
}

void refuse_ranks() {
  const Env env;
  if (is_thread_rank())
    throw ArgumentError(
        "spawn: this thread is a rank of spawn_threads(), and ranks cannot start ranks; call spawn() outside "
        "of them");
  if (is_initialized()) {
    throw ArgumentError(
        "spawn: this process has a default process group, whose connections a forked rank must not use; end "
        "its Context before spawn(), and call init() in the ranks");
  }
  if (!env.has("RANK") || !env.has("TORCHELASTIC_RUN_ID")) return;
  throw_error<ArgumentError>(
      "spawn: this process is rank {} of a run already (RANK and TORCHELASTIC_RUN_ID are set by spawn(), "
      "`lockstep run` or torchrun), and ranks cannot start ranks; do not call spawn(), or start the program "
      "without a launcher",
      env.get("RANK").value_or(""));
}

void refuse_cuda() {
  if (!has_cuda_open("/proc/self/fd")) return;
  throw ArgumentError(
      "spawn: CUDA is initialized in this process, so a forked rank cannot use it; use CUDA only in the "
      "ranks (gpu_count() counts GPUs without initializing CUDA), or start the program with `lockstep run`");
}

}  // namespace

bool has_cuda_open(const fs::path& folder) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    // Opened only for computing, not for queries of the state of a GPU.
    if (fs::read_symlink(entry.path(), ignored) == "/dev/nvidia-uvm") return true;
  }
  return false;
}

void prepare_to_fork() {
  refuse_ranks();
  refuse_cuda();
  runtime::release_all_idle_threads();
  refuse_threads();
}

}  // namespace lockstep::spawning
