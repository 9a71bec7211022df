// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/module_tensors.h"

namespace lockstep::checkpointing {
namespace {

void collect(const torch::nn::Module& module, const std::string& prefix, std::vector<ModuleTensor>& found) {
  for (const auto& item : module.named_parameters(false))
    found.push_back({prefix + item.key(), item.value(), true});
  for (const auto& item : module.named_buffers(false))
    found.push_back({prefix + item.key(), item.value(), false});
  for (const auto& child : module.named_children())
    collect(*child.value(), prefix + child.key() + ".", found);
}

}  // namespace

std::vector<ModuleTensor> module_tensors(const torch::nn::Module& module) {
  std::vector<ModuleTensor> found;
  collect(module, "", found);
  return found;
}

}  // namespace lockstep::checkpointing
