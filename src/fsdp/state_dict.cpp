// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/state_dict.h>
#include <lockstep/fsdp/state_dict.h>
#include <lockstep/runtime/default_group.h>

#include "base/throw_error.h"
#include "checkpoint/row_states.h"
#include "fsdp/parameter_group.h"

namespace lockstep {
namespace fsdp {

// What FSDPModule knows about one of its parameters.
struct ParameterEntry {
  std::string name;
  const ShardedParameter* parameter = nullptr;  // nullptr: it is not sharded
  const ProcessGroup* ranks = nullptr;
  at::Tensor rows = {};  // its shard, or the whole parameter
};

struct Entries {
  static std::vector<ParameterEntry> parameters(const FSDPModule& module) {
    std::vector<ParameterEntry> all;
    for (const auto& entry : module.entries_) {
      if (entry.group) {
        const auto& parameter = entry.group->parameters()[entry.index];
        all.push_back({entry.name, &parameter, &entry.group->shard_group(), parameter.shard});
      } else {
        all.push_back({.name = entry.name, .rows = entry.ignored});
      }
    }
    return all;
  }
  // Returns when no rank reads the parameters.
  static void reshard(const FSDPModule& module) {
    for (const auto& group : module.groups(true)) group->reshard();
  }
  static const std::vector<FSDPModule::NamedParameter>& buffers(const FSDPModule& module) {
    return module.buffers_;
  }
};

}  // namespace fsdp

namespace {

using fsdp::Entries;
using fsdp::ParameterEntry;

// The rows of all ranks.
at::Tensor gather_rows(const at::Tensor& rows, const ParameterEntry& entry) {
  const auto& parameter = *entry.parameter;
  auto sizes = parameter.sizes;
  sizes.front() = parameter.chunk;
  const auto padded = at::zeros(sizes, rows.options().requires_grad(false));
  padded.narrow(0, 0, rows.size(0)).copy_(rows);
  sizes.front() *= entry.ranks->size();
  const auto all = at::empty(sizes, padded.options());
  entry.ranks->all_gather_into_tensor(all, padded);
  return all.narrow(0, 0, parameter.sizes.front());
}

// A tensor of the parameter's rows as an entry of a state dict.
Value to_value(const at::Tensor& tensor, const ParameterEntry& entry, const StateDictOptions& options) {
  auto rows = tensor.detach();
  const bool is_sharded = entry.parameter != nullptr;
  if (is_sharded && options.full_state_dict) rows = gather_rows(rows, entry);
  if (options.cpu_offload) rows = rows.to(at::kCPU);
  if (!is_sharded || options.full_state_dict) return rows;
  std::vector<std::int64_t> offsets(entry.parameter->sizes.size(), 0);
  offsets.front() = entry.parameter->first_row(entry.ranks->rank());
  ShardedTensor sharded{.size = entry.parameter->sizes, .dtype = rows.scalar_type()};
  if (rows.numel() > 0) sharded.local_shards.push_back({rows, std::move(offsets)});
  return sharded;
}

bool is_left_out(const StateDictOptions& options) {
  return options.full_state_dict && options.cpu_offload && get_rank() != 0;
}

// This rank's rows of an entry of a state dict; the whole tensor if the parameter is not sharded.
at::Tensor rows_of(const Value& value, const ParameterEntry& entry, const std::string& key) {
  const auto* const sharded = value.get_if<ShardedTensor>();
  if (sharded == nullptr) {
    const auto& whole = value.as_tensor();
    const auto sizes = entry.parameter != nullptr ? entry.parameter->sizes : entry.rows.sizes().vec();
    if (whole.sizes() != at::IntArrayRef(sizes)) {
      throw_error<CheckpointError>("{} has the shape {}, but the module's is {}", key,
                                   repr(Size{whole.sizes().vec()}), repr(Size{sizes}));
    }
    if (entry.parameter == nullptr) return whole;
    const auto rank = entry.ranks->rank();
    return whole.narrow(0, entry.parameter->first_row(rank), entry.parameter->rows(rank));
  }
  if (entry.rows.numel() == 0) return at::empty(entry.rows.sizes(), entry.rows.options());
  const auto first = entry.parameter != nullptr ? entry.parameter->first_row(entry.ranks->rank()) : 0;
  for (const auto& [tensor, offsets] : sharded->local_shards) {
    if (tensor.sizes() == entry.rows.sizes() && offsets.front() == first) return tensor;
  }
  throw_error<CheckpointError>(
      "{} has no part with this rank's rows ({} from row {}); load the checkpoint into the dict that "
      "get_model_state_dict() or get_optimizer_state_dict() returns",
      key, entry.rows.size(0), first);
}

void copy_rows(const at::Tensor& rows, const at::Tensor& target) {
  const c10::NoGradGuard no_gradients;
  if (rows.data_ptr() != target.data_ptr() || rows.numel() == 0) target.copy_(rows);
}

// Rank 0's tensor on all ranks. `sizes` and `options` are of the whole tensor.
at::Tensor broadcast(const at::Tensor& tensor, at::IntArrayRef sizes, const at::TensorOptions& options) {
  const auto whole = get_rank() == 0 ? tensor.to(options).contiguous() : at::empty(sizes, options);
  default_group().broadcast(whole, 0);
  return whole;
}

Value broadcast_entry(const Value* value, const ParameterEntry& entry) {
  const auto sizes = entry.parameter != nullptr ? entry.parameter->sizes : entry.rows.sizes().vec();
  return broadcast(value != nullptr ? value->as_tensor() : at::Tensor(), sizes,
                   entry.rows.options().requires_grad(false));
}

const ParameterEntry& entry_of(const std::vector<ParameterEntry>& entries, const at::Tensor& parameter) {
  for (const auto& entry : entries) {
    if (entry.rows.is_same(parameter)) return entry;
  }
  throw_error<ArgumentError>(
      "the optimizer has a parameter that is none of the FSDPModule's parameters(); construct it from these");
}

std::vector<at::Tensor> parameters_of(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> all;
  for (const auto& group : optimizer.param_groups())
    all.insert(all.end(), group.params().begin(), group.params().end());
  return all;
}

// Replaces the parameters of each group by `rename(parameter)`.
template <class Rename>
List renamed_groups(const Value& groups, const Rename& rename) {
  List result;
  for (const auto& group : groups.as_items()) {
    Dict renamed = group.as_dict();
    List names;
    for (const auto& parameter : group["params"].as_items()) names.items.push_back(rename(parameter));
    renamed.set("params", names);
    result.items.emplace_back(std::move(renamed));
  }
  return result;
}

// The value of an entry of a state.
Value to_value(const Value& value, const ParameterEntry& entry, const StateDictOptions& options) {
  const auto* const sharded = value.get_if<ShardedTensor>();
  if (sharded == nullptr) return value;
  const auto rows = entry.rows.options().requires_grad(false).dtype(sharded->dtype);
  const auto& own = sharded->local_shards;
  return to_value(own.empty() ? at::empty(entry.rows.sizes(), rows) : own.front().tensor, entry, options);
}

}  // namespace

Dict get_model_state_dict(const FSDPModule& module, const StateDictOptions& options) {
  auto dict = ordered_dict();
  for (const auto& entry : Entries::parameters(module)) {
    auto value = to_value(entry.rows, entry, options);
    if (!is_left_out(options)) dict.set(entry.name, std::move(value));
  }
  for (const auto& [name, buffer] : Entries::buffers(module)) {
    if (is_left_out(options)) continue;
    dict.set(name, options.cpu_offload ? buffer.detach().to(at::kCPU) : buffer.detach());
  }
  return dict;
}

void set_model_state_dict(const FSDPModule& module, const Dict& model_state_dict,
                          const StateDictOptions& options) {
  const bool reads = !options.broadcast_from_rank0 || get_rank() == 0;
  Entries::reshard(module);
  const auto set = [&](const ParameterEntry& entry) {
    const auto* const value = reads ? &model_state_dict.at(entry.name) : nullptr;
    const Value own = options.broadcast_from_rank0 ? broadcast_entry(value, entry) : *value;
    copy_rows(rows_of(own, entry, entry.name), entry.rows.detach());
  };
  for (const auto& entry : Entries::parameters(module)) set(entry);
  for (const auto& [name, buffer] : Entries::buffers(module)) set({.name = name, .rows = buffer});
}

Dict get_optimizer_state_dict(const FSDPModule& module, torch::optim::Optimizer& optimizer,
                              const StateDictOptions& options) {
  const auto entries = Entries::parameters(module);
  const auto parameters = parameters_of(optimizer);
  const auto entry_at = [&](const Value& index) -> const ParameterEntry& {
    return entry_of(entries, parameters.at(static_cast<std::size_t>(index.as_int())));
  };
  const auto own = checkpointing::complete_state_dict(optimizer);
  Dict states;
  for (const auto& [index, values] : own.at("state").as_dict()) {
    const auto& entry = entry_at(index);
    Dict state;
    for (const auto& [key, value] : values.as_dict()) state.set(key, to_value(value, entry, options));
    states.set(entry.name, std::move(state));
  }
  if (is_left_out(options)) return {};
  const auto name = [&](const Value& index) { return Value(entry_at(index).name); };
  return {{"state", std::move(states)}, {"param_groups", renamed_groups(own.at("param_groups"), name)}};
}

void set_optimizer_state_dict(const FSDPModule& module, torch::optim::Optimizer& optimizer,
                              const Dict& optim_state_dict, const StateDictOptions& options) {
  if (options.broadcast_from_rank0) {
    throw_error<ArgumentError>(
        "set_optimizer_state_dict(): broadcast_from_rank0 is for models only; load whole tensors on every "
        "rank, "
        "or a folder with distributed_checkpoint::load()");
  }
  const auto entries = Entries::parameters(module);
  const auto parameters = parameters_of(optimizer);
  Dict states;
  Dict indices;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& entry = entry_of(entries, parameters[i]);
    indices.set(entry.name, static_cast<std::int64_t>(i));
    const auto* const saved = optim_state_dict.at("state").as_dict().find(entry.name);
    if (saved == nullptr) continue;
    Dict state;
    for (const auto& [key, value] : saved->as_dict()) {
      const auto* const whole = value.get_if<at::Tensor>();
      const bool sharded = value.is<ShardedTensor>() || (whole != nullptr && key.as_string() != "step" &&
                                                         entry.parameter != nullptr && whole->dim() > 0);
      const auto path = entry.name + "." + key.as_string();
      state.set(key, sharded ? Value(rows_of(value, entry, path)) : value);
    }
    states.set(static_cast<std::int64_t>(i), std::move(state));
  }
  const auto index = [&](const Value& name) { return indices.at(name); };
  load_state_dict(optimizer,
                  Dict{{"state", std::move(states)},
                       {"param_groups", renamed_groups(optim_state_dict.at("param_groups"), index)}});
}

Dict FSDPModule::state_dict() const { return get_model_state_dict(*this); }

void FSDPModule::load_state_dict(const Dict& state_dict) const { set_model_state_dict(*this, state_dict); }

}  // namespace lockstep
