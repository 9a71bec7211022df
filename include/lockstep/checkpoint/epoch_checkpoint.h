// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <lockstep/checkpoint/module_state.h>
#include <lockstep/serialize/value.h>

namespace lockstep {

/// How far a run has come, in the layout of PyTorch's ImageNet example.
struct EpochCheckpoint {
  std::int64_t epoch = 0;  ///< the one to go on with
  std::string arch = {};   ///< the name of the architecture, as "resnet50"
  double best_acc = 0;
};

/// {"epoch", "arch", "state_dict", "best_acc", "optimizer"}, in this order. Tensors share the data of the
/// module and the optimizer. Further entries are set() in what it returns. PyTorch has the layout in its
/// ImageNet example, no function.
Dict make_epoch_checkpoint(const EpochCheckpoint& progress, const torch::nn::Module& module,
                           const torch::optim::Optimizer& optimizer);

template <ModulePointer Holder>
Dict make_epoch_checkpoint(const EpochCheckpoint& progress, const Holder& module,
                           const torch::optim::Optimizer& optimizer) {
  return make_epoch_checkpoint(progress, static_cast<const torch::nn::Module&>(*module), optimizer);
}

/// Loads module and optimizer, as load_state_dict() does, from such a dict of C++ or Python, and returns the
/// rest. Numbers may also be tensors of one element; "best_acc1", as the example calls it today, stands in
/// for a missing "best_acc"; further entries are passed over. Throws CheckpointError naming the entry that is
/// missing, of another type or does not fit, and both architectures where `arch` is given and another one was
/// saved; module and optimizer are then as they were.
EpochCheckpoint load_epoch_checkpoint(const Dict& checkpoint, torch::nn::Module& module,
                                      torch::optim::Optimizer& optimizer, std::string_view arch = "");

template <ModulePointer Holder>
EpochCheckpoint load_epoch_checkpoint(const Dict& checkpoint, Holder& module,
                                      torch::optim::Optimizer& optimizer, std::string_view arch = "") {
  return load_epoch_checkpoint(checkpoint, static_cast<torch::nn::Module&>(*module), optimizer, arch);
}

}  // namespace lockstep
