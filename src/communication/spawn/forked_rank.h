// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "spawn/spawn_guard.h"

namespace lockstep::spawning {

// Ends LibTorch's idle worker threads, which it restarts on demand. Then throws ArgumentError, with the
// reason and a remedy, if a forked child could not use LibTorch.
void prepare_to_fork();

// Whether CUDA is initialized, according to the descriptors in `folder` (/proc/self/fd). A call of CUDA would
// initialize it.
bool has_cuda_open(const std::filesystem::path& folder);

// In a process just forked off `guard`, with every signal blocked: runs the body and ends the process.
// `foreign`: descriptors that are not for ranks.
[[noreturn]] void run_spawned_rank(const SpawnRequest& request, int rank, pid_t guard,
                                   const std::vector<int>& foreign);

// C and C++ streams.
void flush_streams();

// The threads of each of `ranks` ranks on this host: `chosen`, LibTorch's number if OMP_NUM_THREADS is set,
// or a share of the usable cores.
int threads_per_rank(std::optional<int> chosen, int ranks);

}  // namespace lockstep::spawning
