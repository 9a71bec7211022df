// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <unordered_set>

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>
#include <torch/ordered_dict.h>

// What the networks have in common, mostly where LibTorch's modules differ from Python's.
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

// A part of a network, which reset() makes from its options.
template <typename Self, typename Options>
class Part : public torch::nn::Cloneable<Self> {
 public:
  Part(const char* name, const Options& options) : torch::nn::Cloneable<Self>(name), options_(options) {}

 protected:
  Options options_;
};

}  // namespace lockstep::models
