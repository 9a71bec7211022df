// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/nn/modules/linear.h>

namespace lockstep::models {

// What Python's Linear computes. LibTorch's own forward adds the bias in a further pass over the output for
// inputs of more than two dimensions.
inline at::Tensor linear(const torch::nn::Linear& layer, const at::Tensor& x) {
  return at::linear(x, layer->weight, layer->bias);
}

}  // namespace lockstep::models
