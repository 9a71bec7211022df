// SPDX-License-Identifier: BSD-3-Clause
#include "fsdp/sharded_state_dict.h"

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/state_dict.h>
#include <lockstep/runtime/default_group.h>
#include <lockstep/serialize/torch_file.h>

#include "base/throw_error.h"
#include "comm/group_state.h"
#include "optim/optimizer_states.h"
#include "optim/unaveraged.h"
#include "state/optimizer_state.h"

namespace lockstep::fsdp {
namespace {

// The tensor of `size` elements along the dimension of the cut.
at::Tensor gather_parts(const at::Tensor& part, const modules::Cut& cut, std::int64_t size) {
  auto sizes = part.sizes().vec();
  sizes[static_cast<std::size_t>(cut.dim)] = cut.chunk;
  const auto device = comm::device_that_carries(cut.ranks, part.device());
  const auto padded = at::zeros(sizes, part.options().requires_grad(false).device(device));
  padded.narrow(cut.dim, 0, part.size(cut.dim)).copy_(part);
  sizes.insert(sizes.begin(), cut.ranks.size());
  const auto all = at::empty(sizes, padded.options());
  cut.ranks.all_gather_into_tensor(all, padded);
  return at::cat(all.to(part.device()).unbind(0), cut.dim).narrow(cut.dim, 0, size).contiguous();
}

at::Tensor gather_whole(at::Tensor part, const ParameterEntry& entry) {
  // The size along its dimension of what each cut divides.
  std::vector<std::int64_t> cut_sizes;
  auto sizes = entry.sizes;
  for (const auto& cut : entry.cuts) {
    auto& size = sizes[static_cast<std::size_t>(cut.dim)];
    cut_sizes.push_back(size);
    size = std::min(cut.chunk, size - cut.first);
  }
  for (auto i = entry.cuts.size(); i-- > 0;) part = gather_parts(part, entry.cuts[i], cut_sizes[i]);
  return part;
}

// A tensor of the shape of the parameter's part as an entry of a state dict.
Value to_value(const at::Tensor& tensor, const ParameterEntry& entry, const StateDictOptions& options) {
  auto part = tensor.detach();
  if (options.full_state_dict) part = gather_whole(std::move(part), entry);
  if (options.cpu_offload) part = part.to(at::kCPU);
  if (entry.cuts.empty() || options.full_state_dict) return part;
  ShardedTensor sharded{.size = entry.sizes, .dtype = part.scalar_type()};
  if (part.numel() > 0)
    sharded.local_shards.push_back({part, modules::offsets_of(entry.cuts, entry.sizes.size())});
  return sharded;
}

bool is_left_out(const StateDictOptions& options) {
  return options.full_state_dict && options.cpu_offload && get_rank() != 0;
}

// Throws CheckpointError for another shape.
const at::Tensor& whole_tensor(const Value& value, const ParameterEntry& entry, const std::string& key) {
  const auto& whole = value.as_tensor();
  if (whole.sizes() != at::IntArrayRef(entry.sizes)) {
    throw_error<CheckpointError>("{} has the shape {}, but the module's is {}", key,
                                 repr(Size{whole.sizes().vec()}), repr(Size{entry.sizes}));
  }
  return whole;
}

// This rank's part of an entry of a state dict; the whole tensor if the parameter is not cut.
at::Tensor part_of(const Value& value, const ParameterEntry& entry, const std::string& key) {
  const auto* const sharded = value.get_if<ShardedTensor>();
  const auto own = modules::offsets_of(entry.cuts, entry.sizes.size());
  if (sharded == nullptr) {
    return optim::narrow_to_part(whole_tensor(value, entry, key), own, entry.part.sizes());
  }
  if (entry.part.numel() == 0) return at::empty(entry.part.sizes(), entry.part.options());
  for (const auto& [tensor, offsets] : sharded->local_shards)
    if (tensor.sizes() == entry.part.sizes() && offsets == own) return tensor;
  throw_error<CheckpointError>(
      "{} has no part with this rank's elements ({} from {}); load the checkpoint into the dict that "
      "get_model_state_dict() or get_optimizer_state_dict() returns",
      key, repr(Size{entry.part.sizes().vec()}), repr(Size{own}));
}

// That of the first of its names which the dict has; nullptr: none.
const Value* find_saved(const Dict& dict, const std::string& name, const StateEntries& entries) {
  const auto* value = dict.find(name);
  for (const auto& [alias, first] : entries.aliases)
    if (value == nullptr && first == name) value = dict.find(alias);
  return value;
}

// Throws CheckpointError for the first name.
const Value& saved_value(const Dict& dict, const std::string& name, const StateEntries& entries) {
  const auto* const value = find_saved(dict, name, entries);
  return value != nullptr ? *value : dict.at(name);
}

// What `read` returns on rank 0, on all ranks. Throws its error on all of them.
Value value_of_rank_0(const std::function<Value()>& read) {
  constexpr char kValue = 'v', kError = 'e';
  std::string text;
  if (get_rank() == 0) {
    try {
      text = kValue + save_bytes(read());
    } catch (const std::exception& error) {
      text = kError + std::string(error.what());
    }
  }
  text = default_group().broadcast_object(text, 0);
  const auto content = std::string_view(text).substr(1);
  if (text.front() == kValue) return load_bytes(content);
  throw_error<CheckpointError>("rank 0: {}", content);
}

// The calls below are for parameters in rank 0's order.
void refuse_other_parameters(const StateEntries& entries, const char* function) {
  std::string names;
  for (const auto& entry : entries.parameters) names += entry.name + "\n";
  const auto all = default_group().all_gather_object(names);
  const auto other = std::ranges::find_if(all, [&](const auto& each) { return each != all.front(); });
  if (other == all.end()) return;
  throw_error<ArgumentError>("{}: broadcast_from_rank0: rank {} has other parameters than rank 0", function,
                             other - all.begin());
}

// Rank 0's whole tensor on all ranks. `value`: on rank 0, which has read it.
Value broadcast(const Value* value, const ParameterEntry& entry) {
  const auto device = comm::device_that_carries(default_group(), entry.part.device());
  const auto options = entry.part.options().requires_grad(false).device(device);
  const auto whole =
      value != nullptr ? value->as_tensor().to(options).contiguous() : at::empty(entry.sizes, options);
  default_group().broadcast(whole, 0);
  return whole;
}

std::vector<ParameterEntry> parameters_and_buffers(const StateEntries& entries) {
  auto all = entries.parameters;
  for (const auto& [name, buffer] : entries.buffers) all.push_back({name, buffer, buffer.sizes().vec()});
  return all;
}

// The names of the dict that the module does not have.
List unexpected_names(const StateEntries& entries, const std::vector<ParameterEntry>& wanted,
                      const Dict& dict) {
  std::set<std::string> known;
  for (const auto& entry : wanted) known.insert(entry.name);
  for (const auto& [alias, first] : entries.aliases) known.insert(alias);
  List unexpected;
  for (const auto& [key, value] : dict)
    if (const auto name = key.is<std::string>() ? key.as_string() : repr(key); !known.contains(name))
      unexpected.items.emplace_back(name);
  return unexpected;
}

// The names of `wanted` that the dict lacks. Throws CheckpointError, with `strict` for the first of them, with
// `whole` for what is no tensor of the parameter's shape.
List missing_names(const StateEntries& entries, const std::vector<ParameterEntry>& wanted, const Dict& dict,
                   bool strict, bool whole) {
  List missing;
  for (const auto& entry : wanted) {
    if (!strict && find_saved(dict, entry.name, entries) == nullptr) {
      missing.items.emplace_back(entry.name);
    } else if (whole) {
      whole_tensor(saved_value(dict, entry.name, entries), entry, entry.name);
    }
  }
  return missing;
}

// {missing_names(), unexpected_names()}. Throws CheckpointError, with `strict` for the second, too.
Value differences_of(const StateEntries& entries, const Dict& dict, const StateDictOptions& options) {
  const auto wanted = parameters_and_buffers(entries);
  auto missing = missing_names(entries, wanted, dict, options.strict, options.broadcast_from_rank0);
  auto unexpected = unexpected_names(entries, wanted, dict);
  if (options.strict && !unexpected.items.empty()) {
    std::vector<std::string> names;
    for (const auto& name : unexpected.items) names.push_back(name.as_string());
    throw_error<CheckpointError>(
        "the state dict has entries that the module does not have: \"{}\"; set_model_state_dict(module, dict, "
        "{{.strict = false}}) leaves them out",
        fmt::join(names, "\", \""));
  }
  return List{std::move(missing), std::move(unexpected)};
}

const ParameterEntry& entry_of(const StateEntries& entries, const at::Tensor& parameter) {
  for (const auto& entry : entries.parameters) {
    if (entry.part.is_same(parameter)) return entry;
  }
  throw_error<ArgumentError>(
      "the optimizer has a parameter of shape {} that is none of {} parameters(); if one has been replaced, "
      "construct the optimizer anew from the parameters() as they are now",
      repr(Size{parameter.sizes().vec()}), entries.owner);
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

// The value of an entry of a state. State dicts of optimizers have ShardedTensors for fully_shard()'s rows.
Value to_value(const std::string& key, const Value& value, const ParameterEntry& entry,
               const StateDictOptions& options) {
  if (const auto* const sharded = value.get_if<ShardedTensor>()) {
    const auto part = entry.part.options().requires_grad(false).dtype(sharded->dtype);
    const auto& own = sharded->local_shards;
    return to_value(own.empty() ? at::empty(entry.part.sizes(), part) : own.front().tensor, entry, options);
  }
  const auto* const tensor = value.get_if<at::Tensor>();
  const bool is_part = tensor != nullptr && key != "step" && tensor->sizes() == entry.part.sizes();
  return !entry.cuts.empty() && is_part ? to_value(*tensor, entry, options) : value;
}

// This rank's parts of a parameter's state.
Dict own_state(const Dict& saved, const ParameterEntry& entry) {
  Dict state;
  for (const auto& [key, value] : saved) {
    const auto* const whole = value.get_if<at::Tensor>();
    const bool sharded = value.is<ShardedTensor>() || (whole != nullptr && key.as_string() != "step" &&
                                                       !entry.cuts.empty() && whole->dim() > 0);
    state.set(key, sharded ? Value(part_of(value, entry, entry.name + "." + key.as_string())) : value);
  }
  return state;
}

}  // namespace

ParameterEntry entry_of_parameter(const std::string& name, const at::Tensor& tensor) {
  const auto* const part = modules::cut_parameter(tensor);
  if (part == nullptr) return {name, tensor, tensor.sizes().vec()};
  ParameterEntry entry{name, tensor, part->sizes()};
  if (part->cut()) entry.cuts.push_back(*part->cut());
  return entry;
}

void refuse_experts(const StateEntries& entries, const char* function) {
  for (const auto& entry : entries.parameters) {
    if (!entry.expert_ranks) continue;
    throw_error<ArgumentError>(
        "{}: rank {}: {} is of an expert that other ranks do not have; use a folder of "
        "distributed_checkpoint",
        function, get_rank(), entry.name);
  }
}

at::Tensor full_tensor(const StateEntries& entries, const std::string& name) {
  const auto alias = entries.aliases.find(name);
  const auto& first = alias == entries.aliases.end() ? name : alias->second;
  const auto entry = std::ranges::find(entries.parameters, first, &ParameterEntry::name);
  if (entry == entries.parameters.end())
    throw_error<ArgumentError>("full_tensor(): {} is none of {} parameters", name, entries.owner);
  return gather_whole(entry->part.detach(), *entry);
}

Dict model_state_dict(const StateEntries& entries, const StateDictOptions& options) {
  auto dict = ordered_dict();
  for (const auto& entry : entries.parameters) {
    auto value = to_value(entry.part, entry, options);
    if (!is_left_out(options)) dict.set(entry.name, std::move(value));
  }
  for (const auto& [name, buffer] : entries.buffers) {
    if (is_left_out(options)) continue;
    dict.set(name, options.cpu_offload ? buffer.detach().to(at::kCPU) : buffer.detach());
  }
  if (!is_left_out(options))
    for (const auto& [name, first] : entries.aliases) dict.set(name, dict.at(first));
  return dict;
}

LoadReport load_model_state_dict(const StateEntries& entries, const Dict& model_state_dict,
                                 const StateDictOptions& options) {
  const bool reads = !options.broadcast_from_rank0 || get_rank() == 0;
  const auto compare = [&] { return differences_of(entries, model_state_dict, options); };
  Value differences;
  if (options.broadcast_from_rank0) {
    refuse_experts(entries, "set_model_state_dict(): broadcast_from_rank0");
    refuse_other_parameters(entries, "set_model_state_dict()");
    differences = value_of_rank_0(compare);
  } else {
    differences = compare();
  }
  LoadReport report;
  report.missing_keys = differences[0];
  report.unexpected_keys = differences[1];
  auto wanted = parameters_and_buffers(entries);
  for (const auto& name : report.missing_keys)
    std::erase_if(wanted, [&](const auto& entry) { return entry.name == name; });
  const c10::NoGradGuard no_gradients;
  const auto set = [&](const ParameterEntry& entry) {
    const auto* const value = reads ? &saved_value(model_state_dict, entry.name, entries) : nullptr;
    const Value own = options.broadcast_from_rank0 ? broadcast(value, entry) : *value;
    const auto part = part_of(own, entry, entry.name), target = entry.part.detach();
    if (part.data_ptr() != target.data_ptr() || part.numel() == 0) target.copy_(part);
    optim::forget_changes(entry.part);
    report.loaded_keys.push_back(entry.name);
  };
  for (const auto& entry : wanted) set(entry);
  return report;
}

Dict optimizer_state_dict(const StateEntries& entries, torch::optim::Optimizer& optimizer,
                          const StateDictOptions& options) {
  const auto parameters = optim::parameters_of(optimizer);
  const auto entry_at = [&](const Value& index) -> const ParameterEntry& {
    return entry_of(entries, parameters.at(static_cast<std::size_t>(index.as_int())));
  };
  const auto own = state::complete_state_dict(optimizer);
  Dict states;
  for (const auto& [index, values] : own.at("state").as_dict()) {
    const auto& entry = entry_at(index);
    Dict state;
    for (const auto& [key, value] : values.as_dict())
      state.set(key, to_value(key.as_string(), value, entry, options));
    states.set(entry.name, std::move(state));
  }
  if (is_left_out(options)) return {};
  const auto name = [&](const Value& index) { return Value(entry_at(index).name); };
  Dict nested{{"state", std::move(states)}, {"param_groups", renamed_groups(own.at("param_groups"), name)}};
  return options.flatten_optimizer_state_dict ? state::flattened(nested) : nested;
}

void load_optimizer_state_dict(const StateEntries& entries, torch::optim::Optimizer& optimizer,
                               const Dict& optim_state_dict, const StateDictOptions& options) {
  if (options.broadcast_from_rank0) {
    refuse_experts(entries, "set_optimizer_state_dict(): broadcast_from_rank0");
    refuse_other_parameters(entries, "set_optimizer_state_dict()");
  }
  const bool is_flat = options.flatten_optimizer_state_dict;
  const auto name_of = [&](const at::Tensor& parameter) { return entry_of(entries, parameter).name; };
  std::optional<Dict> nested;
  const auto read = [&](const std::function<Value(const Dict&)>& part) {
    const auto own = [&] {
      if (!nested)
        nested = is_flat ? state::unflattened(optim_state_dict, optimizer, name_of) : optim_state_dict;
      return part(*nested);
    };
    return options.broadcast_from_rank0 ? value_of_rank_0(own) : own();
  };
  const auto parameters = optim::parameters_of(optimizer);
  Dict states;
  Dict indices;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& entry = entry_of(entries, parameters[i]);
    indices.set(entry.name, static_cast<std::int64_t>(i));
    for (const auto& [alias, first] : entries.aliases)
      if (first == entry.name) indices.set(alias, static_cast<std::int64_t>(i));
    const auto saved = read([&](const Dict& all) {
      const auto* const state = find_saved(all.at("state").as_dict(), entry.name, entries);
      return state != nullptr ? *state : Value();
    });
    if (!saved.is<None>()) states.set(static_cast<std::int64_t>(i), own_state(saved.as_dict(), entry));
  }
  const auto groups = read([](const Dict& all) { return all.at("param_groups"); });
  const auto index = [&](const Value& name) { return indices.at(name); };
  load_state_dict(optimizer,
                  Dict{{"state", std::move(states)}, {"param_groups", renamed_groups(groups, index)}});
}

}  // namespace lockstep::fsdp
