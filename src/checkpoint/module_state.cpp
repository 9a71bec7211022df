// SPDX-License-Identifier: BSD-3-Clause
#include "checkpoint/module_state.h"

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>

#include <lockstep/checkpoint/state_dict.h>
#include <lockstep/nn/sync_batch_norm.h>

namespace lockstep {
namespace {

// The numbers that Python's modules have as `_version`.
std::int64_t version_of(const torch::nn::Module& module) {
  using namespace torch::nn;
  const bool normalizes =
      dynamic_cast<const BatchNorm1dImpl*>(&module) || dynamic_cast<const BatchNorm2dImpl*>(&module) ||
      dynamic_cast<const BatchNorm3dImpl*>(&module) || dynamic_cast<const InstanceNorm1dImpl*>(&module) ||
      dynamic_cast<const InstanceNorm2dImpl*>(&module) || dynamic_cast<const InstanceNorm3dImpl*>(&module) ||
      dynamic_cast<const SyncBatchNormImpl*>(&module);
  return normalizes ? 2 : 1;
}

void add_versions(const torch::nn::Module& module, const std::string& name, Dict& versions) {
  versions.set(name, Dict{{"version", version_of(module)}});
  for (const auto& child : module.named_children()) {
    add_versions(*child.value(), name.empty() ? child.key() : name + "." + child.key(), versions);
  }
}

using checkpointing::ModuleTensor;

void collect(const torch::nn::Module& module, const std::string& prefix, std::vector<ModuleTensor>& found) {
  for (const auto& item : module.named_parameters(false))
    found.push_back({prefix + item.key(), item.value(), true});
  for (const auto& item : module.named_buffers(false))
    found.push_back({prefix + item.key(), item.value(), false});
  for (const auto& child : module.named_children())
    collect(*child.value(), prefix + child.key() + ".", found);
}

}  // namespace

std::vector<ModuleTensor> checkpointing::module_tensors(const torch::nn::Module& module) {
  std::vector<ModuleTensor> found;
  collect(module, "", found);
  return found;
}

Dict state_dict(const torch::nn::Module& module) {
  auto dict = ordered_dict();
  for (auto& entry : checkpointing::module_tensors(module))
    dict.set(std::move(entry.name), entry.tensor.detach());
  auto versions = ordered_dict();
  add_versions(module, "", versions);
  dict.set_attributes(Dict{{"_metadata", std::move(versions)}});
  return dict;
}

Dict without_prefix(const Dict& state_dict, const std::string& prefix) {
  Dict stripped(state_dict.kind());
  stripped.reserve(state_dict.size());
  for (const auto& [key, value] : state_dict) {
    const auto* name = key.get_if<std::string>();
    if (name != nullptr && name->starts_with(prefix)) {
      stripped.set(name->substr(prefix.size()), value);
    } else {
      stripped.set(key, value);
    }
  }
  Dict attributes = state_dict.attributes();
  if (auto* metadata = attributes.find("_metadata"); metadata != nullptr && metadata->is<Dict>()) {
    auto versions = ordered_dict();
    const auto bare = prefix.ends_with('.') ? prefix.substr(0, prefix.size() - 1) : prefix;
    for (const auto& [key, value] : metadata->as_dict()) {
      const auto* name = key.get_if<std::string>();
      if (name == nullptr || name->empty()) continue;
      if (*name == bare) {
        versions.set("", value);
      } else {
        versions.set(name->starts_with(prefix) ? Value(name->substr(prefix.size())) : key, value);
      }
    }
    *metadata = std::move(versions);
  }
  stripped.set_attributes(std::move(attributes));
  return stripped;
}

}  // namespace lockstep
