// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <lockstep/comm/process_group.h>

namespace lockstep::training {

// Throws NonFiniteError on all ranks if a parameter of any rank is not finite. Collective.
void check_parameters_finite(const torch::nn::Module& module, std::int64_t step,
                             const std::optional<ProcessGroup>& group);

// Throws NonFiniteError that names the ranks whose loss is not finite. Collective.
[[noreturn]] void throw_non_finite(double loss, const torch::nn::Module& module, std::int64_t step,
                                   const std::optional<ProcessGroup>& group);

}  // namespace lockstep::training
