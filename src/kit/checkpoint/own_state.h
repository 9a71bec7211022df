// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <lockstep/serialize/value.h>

// The state that a rank has by itself. Nothing here calls another rank.
namespace lockstep::checkpointing {

// The state of the part `name` of a TrainingState; tensors share its data. A module of fully_shard() gives the shards of
// this rank. Throws ArgumentError for parameters or states that are distributed over the ranks such that the run
// cannot continue after the loss of one.
Value own_state(const std::string& name, const torch::nn::Module& module);
Value own_state(const std::string& name, const torch::optim::Optimizer& optimizer);
// Restores in place what own_state() has returned. Throws CheckpointError if it does not fit.
void restore_own_state(torch::nn::Module& module, const Dict& saved);

// Throws ArgumentError if the other ranks cannot go on without the part that a lost rank has of it.
void require_can_shrink(const torch::nn::Module& module);
void require_can_shrink(const torch::optim::Optimizer& optimizer);

// Throws ArgumentError if the gradients of the module's parameters are not this rank's alone.
void require_own_gradients(const std::string& name, const torch::nn::Module& module);

}  // namespace lockstep::checkpointing
