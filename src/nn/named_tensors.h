// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <unordered_set>
#include <vector>

#include <torch/nn/module.h>

namespace lockstep::nn {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// Each tensor once, under its first name, as Python's named_parameters() and named_buffers() do.
inline std::vector<NamedTensor> distinct(const torch::OrderedDict<std::string, at::Tensor>& tensors) {
  std::unordered_set<const void*> seen;
  std::vector<NamedTensor> all;
  for (const auto& item : tensors) {
    if (!item.value().defined()) continue;
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) all.push_back({item.key(), item.value()});
  }
  return all;
}

}  // namespace lockstep::nn
