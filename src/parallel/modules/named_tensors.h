// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <map>
#include <source_location>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <torch/nn/module.h>

namespace lockstep::modules {

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

// The names of tied parameters and buffers other than the first, each with the first.
inline std::map<std::string, std::string> aliases_of(const torch::nn::Module& module) {
  std::map<std::string, std::string> all;
  for (const auto& tensors : {module.named_parameters(), module.named_buffers()}) {
    std::unordered_map<const void*, std::string> first_names;
    for (const auto& item : tensors) {
      if (!item.value().defined()) continue;
      const auto [first, is_new] = first_names.emplace(item.value().unsafeGetTensorImpl(), item.key());
      if (!is_new) all.emplace(item.key(), first->second);
    }
  }
  return all;
}

struct NamedModule {
  std::string name;
  torch::nn::Module* module;
};

// The modules below `root` whose names match component by component. Throws ArgumentError, which names those
// that are most like the pattern, if there are none. `caller`: the function's name.
std::vector<NamedModule> matching_modules(torch::nn::Module& root, const std::string& pattern,
                                          const char* caller, std::source_location where);

}  // namespace lockstep::modules
