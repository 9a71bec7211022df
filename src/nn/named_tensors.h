// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include <torch/nn/module.h>

namespace lockstep::nn {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// Each tensor once, under its first name, as Python's named_parameters() and named_buffers() do.
std::vector<NamedTensor> distinct(const torch::OrderedDict<std::string, at::Tensor>& tensors);

}  // namespace lockstep::nn
