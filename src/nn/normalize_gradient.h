// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep::nn {

// For each channel c: result = of_gradient[c] * gradient + of_input[c] * (input - mean[c]) + constant[c].
struct ChannelFactors {
  at::Tensor of_gradient;  // [C] each, of fp32 or fp64
  at::Tensor of_input;
  at::Tensor mean;
  at::Tensor constant;
};

// `gradient` and `input` have one shape [N, C, ...], type and layout: contiguous or channels last. The result
// has it too.
at::Tensor normalize_gradient(const at::Tensor& gradient, const at::Tensor& input,
                              const ChannelFactors& factors);

}  // namespace lockstep::nn
