// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include <torch/optim/optimizer.h>

// The option that CyclicLR and OneCycleLR cycle: `momentum`, or the first of `betas`.
namespace lockstep::optim {

enum class MomentumKind : std::uint8_t { none, momentum, beta1 };

MomentumKind momentum_kind(torch::optim::OptimizerOptions& options);
void set_momentum(torch::optim::OptimizerOptions& options, double value);

}  // namespace lockstep::optim
