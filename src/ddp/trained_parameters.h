// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "nn/named_tensors.h"

namespace lockstep::ddp {

using nn::distinct;
using nn::NamedTensor;

// A parameter whose gradients are reduced.
struct TrainedParameter {
  std::string name;
  at::Tensor tensor;
  bool sparse = false;  // its gradients are
};

// Those that require gradients; sparse where they are the weight of an embedding that says so.
std::vector<TrainedParameter> trained_parameters(const torch::nn::Module& module,
                                                 const std::vector<NamedTensor>& parameters);

}  // namespace lockstep::ddp
