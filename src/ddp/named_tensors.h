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

// Each tensor once, under its first name, as Python's named_parameters() and named_buffers() do.
std::vector<NamedTensor> distinct(const torch::OrderedDict<std::string, at::Tensor>& tensors);

std::vector<NamedTensor> requiring_grad(const std::vector<NamedTensor>& tensors);

}  // namespace lockstep::ddp
