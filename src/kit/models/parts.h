// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <unordered_set>

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/linear.h>
#include <torch/ordered_dict.h>

// Where LibTorch's modules differ from Python's.
namespace lockstep::models {

// What Python's Linear computes. LibTorch's own forward adds the bias in a further pass over the output for
// inputs of more than two dimensions.
inline at::Tensor linear(const torch::nn::Linear& layer, const at::Tensor& x) {
  return at::linear(x, layer->weight, layer->bias);
}

// Each tensor once, under its first name, as in Python's named_parameters().
inline torch::OrderedDict<std::string, at::Tensor> distinct(
    const torch::OrderedDict<std::string, at::Tensor>& named) {
  torch::OrderedDict<std::string, at::Tensor> once;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& item : named) {
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) once.insert(item.key(), item.value());
  }
  return once;
}

}  // namespace lockstep::models
