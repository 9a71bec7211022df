// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <unordered_set>

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>

namespace lockstep::models {

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
