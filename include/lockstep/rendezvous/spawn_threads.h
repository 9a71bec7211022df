// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include <lockstep/base/env.h>
#include <lockstep/rendezvous/init.h>

namespace lockstep {

struct SpawnThreadsOptions {
  /// As InitOptions::backend.
  std::string backend = "auto";

  /// Limit for every call between the ranks.
  std::chrono::milliseconds timeout{1'800'000};

  std::string group_name = "default";  ///< for messages

  /// [i]: context.device() of rank i. Default: CUDA device i where this build can reduce on it, else the CPU.
  std::vector<c10::Device> devices = {};

  /// As InitOptions::share_devices.
  bool share_devices = false;

  /// Threads that a rank uses within one operator (at::get_num_threads()). Default: the cores that this
  /// process may use, shared among the ranks; with OMP_NUM_THREADS set, what LibTorch made of it.
  std::optional<int> threads_per_rank = std::nullopt;

  /// As InitOptions::check_calls.
  std::optional<bool> check_calls = std::nullopt;

  /// As InitOptions::keep_freed_memory.
  bool keep_freed_memory = true;

  /// Where environment variables are read.
  Env env = {};
};

/// Runs `body` in `world_size` threads of this process, each a rank of one run with a default group, rank and
/// device of its own, and returns when all have ended: no launcher, no other process. Everything that works
/// between processes works between these threads (ProcessGroup, DistributedDataParallel, SyncBatchNorm,
/// samplers, loaders), and gives the same bits. PyTorch: `torch.multiprocessing.spawn`, with threads.
///
/// In a rank's thread the functions of init.h and current_world() speak of that rank; in threads that it
/// starts by itself they do not. init() is refused there.
///
/// When a rank's body throws, the others' calls end with PeerLost; once all have ended this throws Error with
/// the rank and text of the first one, which is nested in it (std::rethrow_if_nested). A rank that makes no
/// call is waited for.
///
/// What LibTorch keeps per thread, and what it does not, is in docs/threads.md: among other things, seed with
/// lockstep::manual_seed() there, and make one module in each thread. Each rank's default generator begins as
/// a copy of the process's.
///
/// The first call in a process changes LibTorch's table of operators (for the generators), so no other thread
/// may be running operators at that moment.
///
/// Throws ArgumentError for a world_size below 1, other numbers of devices, and inside of a rank's thread.
void spawn_threads(int world_size, const std::function<void(Context&)>& body,
                   const SpawnThreadsOptions& options = {});

}  // namespace lockstep
