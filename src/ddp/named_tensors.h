// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include <torch/nn/module.h>

namespace lockstep::ddp {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// A parameter whose gradients are reduced.
struct TrainedParameter {
  std::string name;
  at::Tensor tensor;
  bool sparse = false;  // its gradients are
};

// Each tensor once, under its first name, as Python's named_parameters() and named_buffers() do.
std::vector<NamedTensor> distinct(const torch::OrderedDict<std::string, at::Tensor>& tensors);

// Those that require gradients; sparse where they are the weight of an embedding that says so.
std::vector<TrainedParameter> trained_parameters(const torch::nn::Module& module,
                                                 const std::vector<NamedTensor>& parameters);

}  // namespace lockstep::ddp
