// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <lockstep/checkpoint/state_dict.h>
#include <lockstep/serialize/value.h>

namespace lockstep {

/// The progress of a run, in the layout of PyTorch's ImageNet example.
struct EpochCheckpoint {
  std::int64_t epoch = 0;  ///< the next epoch to run
  std::string arch = {};   ///< the architecture, such as "resnet50"
  double best_acc = 0;
};

/// Returns {"epoch", "arch", "state_dict", "best_acc", "optimizer"}, in this order. Tensors share the data of
/// the module and the optimizer. Add further entries with set(). PyTorch has the layout in its ImageNet
/// example, not a function.
Dict make_epoch_checkpoint(const EpochCheckpoint& progress, const torch::nn::Module& module,
                           const torch::optim::Optimizer& optimizer);

template <ModulePointer Holder>
Dict make_epoch_checkpoint(const EpochCheckpoint& progress, const Holder& module,
                           const torch::optim::Optimizer& optimizer) {
  return make_epoch_checkpoint(progress, static_cast<const torch::nn::Module&>(*module), optimizer);
}

/// Loads module and optimizer from such a dict, written by C++ or Python, and returns the other entries.
/// Numbers may be tensors of one element. "best_acc1", the example's current name, replaces a missing
/// "best_acc". Other entries are ignored. Throws CheckpointError that names the entry that is missing or does
/// not fit, or both architectures if `arch` is given and differs; module and optimizer are then unchanged.
EpochCheckpoint load_epoch_checkpoint(const Dict& checkpoint, torch::nn::Module& module,
                                      torch::optim::Optimizer& optimizer, std::string_view arch = "");

template <ModulePointer Holder>
EpochCheckpoint load_epoch_checkpoint(const Dict& checkpoint, Holder& module,
                                      torch::optim::Optimizer& optimizer, std::string_view arch = "") {
  return load_epoch_checkpoint(checkpoint, static_cast<torch::nn::Module&>(*module), optimizer, arch);
}

}  // namespace lockstep
