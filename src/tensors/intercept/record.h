// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::intercept {

// From the gradients of outputs to those of inputs.
using Gradient = std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)>;

// `outputs`, which have no history, as results of `inputs`. All ranks call `gradient` if one of the outputs
// has one; the other outputs' are zeros.
std::vector<at::Tensor> record(const char* name, const std::vector<at::Tensor>& inputs,
                               std::vector<at::Tensor> outputs, Gradient gradient);

// record() whether or not an input has a gradient, as for data that a call receives.
std::vector<at::Tensor> with_history(const char* name, const std::vector<at::Tensor>& inputs,
                                     std::vector<at::Tensor> outputs, Gradient gradient);

}  // namespace lockstep::intercept
