// SPDX-License-Identifier: BSD-3-Clause
#include "nn/named_tensors.h"

#include <unordered_set>

namespace lockstep::nn {

std::vector<NamedTensor> distinct(const torch::OrderedDict<std::string, at::Tensor>& tensors) {
  std::unordered_set<const void*> seen;
  std::vector<NamedTensor> all;
  for (const auto& item : tensors) {
    if (!item.value().defined()) continue;
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) all.push_back({item.key(), item.value()});
  }
  return all;
}

}  // namespace lockstep::nn
