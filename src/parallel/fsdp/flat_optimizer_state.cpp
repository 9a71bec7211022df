// SPDX-License-Identifier: BSD-3-Clause
#include "fsdp/flat_optimizer_state.h"

#include <utility>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/throw_error.h"

namespace lockstep::fsdp {
namespace {

// The entries below a name.
Dict entries_below(const Dict& flat, const std::string& prefix) {
  Dict found;
  for (const auto& [key, value] : flat) {
    const auto name = key.as_string();
    if (name.starts_with(prefix) && name.find('.', prefix.size()) == std::string::npos)
      found.set(name.substr(prefix.size()), value);
  }
  return found;
}

}  // namespace

Dict flattened(const Dict& nested) {
  Dict flat;
  for (const auto& [name, state] : nested.at("state").as_dict()) {
    for (const auto& [key, value] : state.as_dict())
      flat.set(fmt::format("state.{}.{}", name.as_string(), key.as_string()), value);
  }
  for (const auto& group : nested.at("param_groups").as_items()) {
    for (const auto& name : group["params"].as_items()) {
      for (const auto& [key, value] : group.as_dict())
        if (key.as_string() != "params")
          flat.set(fmt::format("param_groups.{}.{}", name.as_string(), key.as_string()), value);
    }
  }
  return flat;
}

Dict unflattened(const Dict& flat, const torch::optim::Optimizer& optimizer,
                 const std::function<std::string(const at::Tensor&)>& name_of) {
  Dict states;
  List groups;
  for (const auto& each : optimizer.param_groups()) {
    List names;
    Dict group;
    for (const auto& parameter : each.params()) {
      const auto name = name_of(parameter);
      if (auto state = entries_below(flat, "state." + name + "."); state.size() > 0)
        states.set(name, std::move(state));
      auto own = entries_below(flat, "param_groups." + name + ".");
      if (own.size() == 0)
        throw_error<CheckpointError>("the optimizer's state dict has no entries param_groups.{}.*", name);
      if (!names.items.empty() && !equal(own, group)) {
        throw_error<CheckpointError>(
            "{} and {} are in one group of the optimizer, and have other options in its state dict", name,
            names.items.front().as_string());
      }
      group = std::move(own);
      names.items.emplace_back(name);
    }
    group.set("params", names);
    groups.items.emplace_back(std::move(group));
  }
  return {{"state", std::move(states)}, {"param_groups", std::move(groups)}};
}

}  // namespace lockstep::fsdp
