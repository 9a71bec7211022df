// SPDX-License-Identifier: BSD-3-Clause
#include "ddp/named_tensors.h"

#include <unordered_set>

namespace lockstep::ddp {

std::vector<NamedTensor> distinct(const torch::OrderedDict<std::string, at::Tensor>& tensors) {
  std::unordered_set<const void*> seen;
  std::vector<NamedTensor> all;
  for (const auto& item : tensors) {
    if (!item.value().defined()) continue;
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) all.push_back({item.key(), item.value()});
  }
  return all;
}

std::vector<NamedTensor> requiring_grad(const std::vector<NamedTensor>& tensors) {
  std::vector<NamedTensor> trained;
  for (const auto& tensor : tensors) {
    if (tensor.tensor.requires_grad()) trained.push_back(tensor);
  }
  return trained;
}

}  // namespace lockstep::ddp
