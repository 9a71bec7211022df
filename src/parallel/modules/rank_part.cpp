// SPDX-License-Identifier: BSD-3-Clause
#include "modules/rank_part.h"

#include <algorithm>

#include "intercept/storage_guard.h"

namespace lockstep::modules {

RankPart* rank_part_of(const at::Tensor& parameter) {
  if (!parameter.defined() || !parameter.has_storage()) return nullptr;
  if (intercept::operator_guard_of(parameter) != nullptr) return nullptr;
  return dynamic_cast<RankPart*>(intercept::memory_guard_of(parameter));
}

bool has_rank_parts(const torch::nn::Module& module) {
  return std::ranges::any_of(module.parameters(),
                             [](const auto& each) { return rank_part_of(each) != nullptr; });
}

std::vector<NamedTensor> own_tensors(const torch::nn::Module& module) {
  auto all = distinct(module.named_parameters());
  for (auto& [name, tensor] : all)
    if (const auto* const part = rank_part_of(tensor)) tensor = part->part_of(tensor);
  for (auto& buffer : distinct(module.named_buffers())) all.push_back(std::move(buffer));
  return all;
}

}  // namespace lockstep::modules
