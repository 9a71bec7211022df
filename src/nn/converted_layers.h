// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <torch/nn/module.h>

#include <lockstep/comm/process_group.h>

namespace lockstep::nn {

// The BatchNorm layers of LibTorch's that convert_sync_batchnorm() has converted. Their forward() is no
// virtual function, so a layer that is to stay the object it is cannot be given another one; what it calls is
// at::batch_norm with its own weight, and there Lockstep steps in and knows the layer by that weight, at
// the cost of one look-up a call once a layer has been converted. Safe from any thread.

// Converts the layer if it is a BatchNorm1d, 2d or 3d; false if it is none. No group: the default one, as it
// is at each forward.
bool convert_layer(const std::shared_ptr<torch::nn::Module>& layer, const std::optional<ProcessGroup>& group);

// The name of the first layer in `module` whose ranks talk to each other in forward, or "" for none.
std::string find_synced_layer(const torch::nn::Module& module);

}  // namespace lockstep::nn
