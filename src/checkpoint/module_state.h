// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include <torch/nn/module.h>

namespace lockstep::checkpointing {

struct ModuleTensor {
  std::string name;
  at::Tensor tensor;
  bool is_parameter = false;
};

// In the order of Python's state_dict(): for each module its parameters, its buffers, then its children. A
// tensor with two names occurs twice.
std::vector<ModuleTensor> module_tensors(const torch::nn::Module& module);

}  // namespace lockstep::checkpointing
