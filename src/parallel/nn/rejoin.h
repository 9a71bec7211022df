// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/nn/module.h>

// What an elastic run does with a module whose default group is formed again with as many ranks.
namespace lockstep::nn {

// Throws ArgumentError unless everything in the module that communicates can go on over the new group: its wrappers
// (WrapperModule::require_can_rejoin()), layers over the default group, and no tensors of which ranks have
// parts.
void require_can_rejoin(const torch::nn::Module& module);

// Calls WrapperModule::rejoin() of the wrappers in the module, inner ones first. Collective; each rank's module
// has the same wrappers. Throws as they do; then the group must be formed again, or the run ends.
void rejoin(torch::nn::Module& module);

}  // namespace lockstep::nn
