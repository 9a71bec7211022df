// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/nn/module.h>

#include <lockstep/serialize/value.h>

#include "checkpoint/share.h"

namespace lockstep::checkpointing {

/// The gradients of a module's parameters by name, None where there is none. Collective. Where all ranks have
/// the same {"all": gradients}; otherwise {rank: gradients} of every rank on rank 0, and of itself elsewhere.
Value gradients_of(const torch::nn::Module& module, const Group& group);

/// Gives every parameter its gradient back, in the place of the one that is there. Throws CheckpointError:
/// names or shapes that do not fit, or gradients that belong to another number of ranks.
void set_gradients(const torch::nn::Module& module, const Group& group, const Value& saved);

}  // namespace lockstep::checkpointing
