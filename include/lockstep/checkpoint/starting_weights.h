// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>

#include <torch/nn/module.h>

#include <lockstep/checkpoint/checkpoint_manager.h>
#include <lockstep/checkpoint/module_state.h>
#include <lockstep/comm/process_group.h>

namespace lockstep {

/// Ranks begin equal, and what they began with stays: rank 0 writes its state dict of `module` to `file`, in
/// the place of what is there, and all ranks load it, buffers too. With `every_rank` each reads the file for
/// itself, which all must then see. Collective; all ranks throw CheckpointError alike, with the rank and the
/// reason, when one cannot write, read or load it. PyTorch has the idiom in its tutorial of
/// DistributedDataParallel, no function.
void share_starting_weights(const ProcessGroup& group, torch::nn::Module& module,
                            const std::filesystem::path& file,
                            CheckpointReading reading = CheckpointReading::broadcast);

template <ModulePointer Holder>
void share_starting_weights(const ProcessGroup& group, Holder& module, const std::filesystem::path& file,
                            CheckpointReading reading = CheckpointReading::broadcast) {
  share_starting_weights(group, static_cast<torch::nn::Module&>(*module), file, reading);
}

}  // namespace lockstep
