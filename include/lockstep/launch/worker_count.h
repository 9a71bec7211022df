// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace lockstep::launch {

/// What a machine offers to ranks.
struct Machine {
  int cores = 1;  ///< cores that this process may use
  int gpus = 0;   ///< NVIDIA GPUs that a process started now would see
};

/// The machine that this runs on.
Machine this_machine();

/// The number of ranks that `nproc_per_node` asks for: a whole number above 0, "cpu" (one a core), "gpu" (one
/// a GPU) or "auto" (one a GPU, or one a core where there is no GPU). Throws ArgumentError for anything else,
/// and for "gpu" where no GPU is visible. PyTorch: torch.distributed.run.determine_local_world_size.
int worker_count(const std::string& nproc_per_node, const Machine& machine);

/// Counts the nodes nvidia0, nvidia1, ... in `device_folder`, cut down to what `cuda_visible_devices` (the
/// value of CUDA_VISIBLE_DEVICES; nullopt when unset) lets CUDA see. As in CUDA, the first entry that names
/// no device hides itself and all that follow, and an empty value hides all. Entries such as GPU-<uuid> are
/// believed.
int visible_gpus(const std::filesystem::path& device_folder,
                 const std::optional<std::string>& cuda_visible_devices);

}  // namespace lockstep::launch
