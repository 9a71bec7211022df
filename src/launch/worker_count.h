// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

namespace lockstep::launch {

// Resources for ranks.
struct Machine {
  int cores = 1;  // cores that this process may use
  int gpus = 0;   // NVIDIA GPUs that a process started now would see
};

// The resources of this machine.
Machine this_machine();

// The number of ranks for `nproc_per_node`: a whole number above 0, "cpu" (one per core), "gpu" (one per GPU)
// or "auto" (one per GPU, or one per core without GPUs). Throws ArgumentError for anything else, and for
// "gpu" if no GPU is visible. PyTorch: torch.distributed.run.determine_local_world_size.
int worker_count(const std::string& nproc_per_node, const Machine& machine);

}  // namespace lockstep::launch
