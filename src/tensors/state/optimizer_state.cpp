// SPDX-License-Identifier: BSD-3-Clause
#include "state/optimizer_state.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/state_dict.h>

#include "base/caller_place.h"
#include "base/throw_error.h"
#include "optim/optimizer_states.h"

namespace lockstep::state {
namespace {

using optim::ParameterRows;
using torch::optim::Optimizer;

constexpr const char* kStep = "step";

// Replaces each value that is a part of the state of a parameter of rows by `change(name, value, parameter,
// rows)`.
template <class Change>
Dict changed(const Optimizer& optimizer, Dict state_dict, const Change& change) {
  const auto parameters = optim::parameters_of(optimizer);
  Dict states;
  for (const auto& [index, values] : state_dict.at("state").as_dict()) {
    const auto i = static_cast<std::size_t>(index.as_int());
    const auto* const rows = i < parameters.size() ? optim::rows_of(parameters[i]) : nullptr;
    Dict state;
    for (const auto& [key, value] : values.as_dict()) {
      state.set(key, rows == nullptr ? value
                                     : change(fmt::format("state[{}].{}", i, key.as_string()), value,
                                              parameters[i], *rows));
    }
    states.set(index, std::move(state));
  }
  state_dict.set("state", std::move(states));
  return state_dict;
}

bool is_number(const std::string& name, const Value& value) {
  const auto* const tensor = value.get_if<at::Tensor>();
  return name.ends_with(".step") || (tensor != nullptr ? tensor->dim() == 0 : !value.is<ShardedTensor>());
}

Value to_sharded(const std::string& name, const Value& value, const at::Tensor& parameter,
                 const ParameterRows& rows) {
  if (is_number(name, value)) return value;
  const auto& tensor = value.as_tensor();
  if (tensor.sizes() != parameter.sizes()) {
    throw_error<ArgumentError>(
        "{} of the optimizer has the shape [{}], and its parameter has the rows [{}] of fully_shard(); only "
        "states of a parameter's shape can be saved",
        name, fmt::join(tensor.sizes(), ", "), fmt::join(parameter.sizes(), ", "));
  }
  ShardedTensor sharded{.size = rows.sizes, .dtype = tensor.scalar_type()};
  if (tensor.numel() > 0) sharded.local_shards.push_back({tensor, rows.offsets});
  return sharded;
}

Value to_own(const std::string& name, const Value& value, const at::Tensor& parameter,
             const ParameterRows& rows) {
  if (is_number(name, value)) return value;
  const auto* const sharded = value.get_if<ShardedTensor>();
  if (sharded == nullptr) {
    const auto& tensor = value.as_tensor();
    return tensor.sizes() == at::IntArrayRef(rows.sizes)
               ? optim::narrow_to_part(tensor, rows.offsets, parameter.sizes())
               : tensor;
  }
  if (parameter.numel() == 0) return at::empty(parameter.sizes(), parameter.options().requires_grad(false));
  for (const auto& [tensor, offsets] : sharded->local_shards) {
    if (tensor.sizes() == parameter.sizes() && offsets == rows.offsets) return tensor;
  }
  throw_error<CheckpointError>(
      "{} has no part with this rank's elements ([{}] from [{}]); load the checkpoint into the dict that "
      "state_dict() returns on as many ranks",
      name, fmt::join(parameter.sizes(), ", "), fmt::join(rows.offsets, ", "));
}

// PyTorch: `_init_optim_state`.
void create_states(Optimizer& optimizer) {
  const auto parameters = optim::parameters_of(optimizer);
  for (const auto& parameter : parameters) {
    if (parameter.grad().defined()) {
      throw_error<ArgumentError>(
          "the optimizer has gradients but no states; save or load before the first backward, or after a "
          "step");
    }
  }
  std::vector<double> rates;
  for (auto& group : optimizer.param_groups()) {
    rates.push_back(group.options().get_lr());
    group.options().set_lr(0);
  }
  for (const auto& parameter : parameters) {
    if (parameter.requires_grad()) parameter.mutable_grad() = at::zeros_like(parameter);
  }
  optimizer.step();
  for (const auto& parameter : parameters) parameter.mutable_grad().reset();
  for (std::size_t i = 0; i < rates.size(); ++i) optimizer.param_groups()[i].options().set_lr(rates[i]);
}

Value no_steps(const Value& count) {
  const auto* const tensor = count.get_if<at::Tensor>();
  return tensor != nullptr ? Value(at::zeros_like(*tensor)) : Value(std::int64_t{0});
}

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

bool has_rows(const Optimizer& optimizer) {
  return std::ranges::any_of(optim::parameters_of(optimizer),
                             [](const auto& each) { return optim::rows_of(each) != nullptr; });
}

Dict with_sharded_states(const Optimizer& optimizer, Dict state_dict) {
  return has_rows(optimizer) ? changed(optimizer, std::move(state_dict), to_sharded) : state_dict;
}

Dict with_own_rows(const Optimizer& optimizer, const Dict& state_dict) {
  return has_rows(optimizer) ? changed(optimizer, state_dict, to_own) : state_dict;
}

Dict complete_state_dict(Optimizer& optimizer) {
  if (!optimizer.state().empty()) return lockstep::state_dict(optimizer);
  create_states(optimizer);
  auto dict = lockstep::state_dict(optimizer);
  Dict states;
  for (const auto& [index, values] : std::as_const(dict).at("state").as_dict()) {
    Dict state = values.as_dict();
    if (const auto* const count = values.as_dict().find(kStep)) state.set(kStep, no_steps(*count));
    states.set(index, std::move(state));
  }
  dict.set("state", std::move(states));
  optimizer.state().clear();
  return dict;
}

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

}  // namespace lockstep::state

namespace lockstep {
namespace {

using torch::optim::Optimizer;

// The member is protected, but may be named through a class that derives from the owner.
struct SchedulerAccess : torch::optim::LRScheduler {
  static constexpr auto count() { return &SchedulerAccess::step_count_; }
  static auto current() { return &SchedulerAccess::get_current_lrs; }
};

}  // namespace

Dict state_dict(const Optimizer& optimizer) {
  if (const auto* distributed = dynamic_cast<const optim::DistributedStates*>(&optimizer))
    distributed->check_complete();
  return state::with_sharded_states(optimizer, optim::states_of_rank(optimizer));
}

void load_state_dict(Optimizer& optimizer, const Dict& given, std::source_location where) {
  const CallerPlace place(where);
  const auto state_dict = state::with_own_rows(optimizer, given);
  try {
    optim::load_states(optimizer, state_dict);
  } catch (const c10::Error& error) {
    throw_error<CheckpointError>("the state of the optimizer cannot be loaded: {}",
                                 error.what_without_backtrace());
  }
}

Dict state_dict(const torch::optim::LRScheduler& scheduler) {
  const std::int64_t count = scheduler.*SchedulerAccess::count();
  List rates;
  for (const auto rate : (scheduler.*SchedulerAccess::current())()) rates.items.emplace_back(rate);
  // Python's schedulers step once when they are made.
  return {{"last_epoch", count}, {"_step_count", count + 1}, {"_last_lr", std::move(rates)}};
}

void load_state_dict(torch::optim::LRScheduler& scheduler, const Dict& state_dict,
                     std::source_location where) {
  const CallerPlace place(where);
  const auto count = state_dict.at("last_epoch").as_int();
  if (count < 0) throw_error<CheckpointError>("the scheduler's last_epoch is {}, below 0", count);
  scheduler.*SchedulerAccess::count() = static_cast<unsigned>(count);
}

}  // namespace lockstep
