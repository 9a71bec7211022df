// SPDX-License-Identifier: BSD-3-Clause
#include "optim/optimizer_states.h"

#include <memory>
#include <utility>
#include <vector>

#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <lockstep/optim/fused.h>
#include <lockstep/serialize/torch_file.h>

#include "base/throw_error.h"
#include "optim/optimizer_kind.h"
#include "optim/schedule.h"

namespace lockstep::optim {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;
using NewStates = std::vector<std::pair<void*, std::unique_ptr<OptimizerParamState>>>;

Dict state_dict_of(const OptimizerKind& kind, OptimizerParamState& state) {
  Dict dict;
  Fields fields(dict);
  kind.visit_state(state, fields);
  return dict;
}

// By the numbers of the parameters in all groups.
Dict states_of(const Optimizer& optimizer) {
  const auto& kind = kind_of(optimizer);
  Dict states;
  std::int64_t index = 0;
  for (const auto& parameter : parameters_of(optimizer)) {
    const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
    if (found != optimizer.state().end()) {
      auto state = state_dict_of(kind, *found->second);
      if (!state.empty()) states.set(index, std::move(state));
    }
    ++index;
  }
  return states;
}

std::unique_ptr<OptimizerParamState> loaded_state(const OptimizerKind& kind, const Optimizer& optimizer,
                                                  const at::Tensor& parameter,
                                                  const OptimizerOptions& options, const Value& index,
                                                  const Dict& saved, TensorsRead tensors) {
  // Tensors of a new state are not needed where those that are saved take their place.
  const auto like = tensors == TensorsRead::adopted
                        ? at::empty_like(parameter, parameter.options().device(at::kMeta))
                        : parameter;
  auto state = kind.new_state(optimizer, like, options);
  Fields fields(saved, fmt::format("state[{}]", repr(index, 20)), parameter, tensors);
  kind.visit_state(*state, fields);
  return state;
}

void read_options(OptimizerOptions& options, const Dict& saved, std::size_t group) {
  Fields fields(saved, fmt::format("param_groups[{}]", group), /*complete=*/true);
  visit_options(options, fields);
}

void check_sizes(const Optimizer& optimizer, const std::vector<Value>& groups) {
  const auto& own = optimizer.param_groups();
  if (groups.size() != own.size()) {
    throw_error<CheckpointError>(
        "loaded state dict has a different number of parameter groups: {} instead of {}", groups.size(),
        own.size());
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto given = groups[g].as_dict().at("params").as_items().size();
    if (given == own[g].params().size()) continue;
    throw_error<CheckpointError>(
        "loaded state dict contains a parameter group that doesn't match the size of optimizer's group: "
        "group {} has {} parameters instead of {}",
        g, given, own[g].params().size());
  }
}

// Throws for anything that does not fit.
NewStates loaded_states(const OptimizerKind& kind, const Optimizer& optimizer,
                        const std::vector<Value>& groups, const Dict& saved, TensorsRead tensors) {
  NewStates states;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto options = kind.options(optimizer, g);
    read_options(*options, groups[g].as_dict(), g);
    const auto& params = optimizer.param_groups()[g].params();
    const auto& indices = groups[g].as_dict().at("params").as_items();
    for (std::size_t i = 0; i < indices.size(); ++i) {
      const auto* state = saved.find(indices[i]);
      if (state == nullptr || state->as_dict().empty()) continue;
      auto loaded = loaded_state(kind, optimizer, params[i], *options, indices[i], state->as_dict(), tensors);
      // SGD takes a state without momentum for one with it.
      if (state_dict_of(kind, *loaded).empty()) continue;
      states.emplace_back(params[i].unsafeGetTensorImpl(), std::move(loaded));
    }
  }
  return states;
}

}  // namespace

std::vector<at::Tensor> parameters_of(const Optimizer& optimizer) {
  std::vector<at::Tensor> all;
  for (const auto& group : optimizer.param_groups())
    all.insert(all.end(), group.params().begin(), group.params().end());
  return all;
}

Dict states_of_rank(const Optimizer& optimizer) {
  List groups;
  std::int64_t index = 0;
  for (std::size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    Dict dict;
    Fields fields(dict);
    visit_options(*kind_of(optimizer).options(optimizer, g), fields);
    write_entries(optimizer, g, dict);
    List indices;
    for (std::size_t i = 0; i < optimizer.param_groups()[g].params().size(); ++i)
      indices.items.emplace_back(index++);
    dict.set("params", std::move(indices));
    groups.items.emplace_back(std::move(dict));
  }
  return {{"state", states_of(optimizer)}, {"param_groups", std::move(groups)}};
}

namespace {

std::vector<at::Tensor> tensors_of(const OptimizerKind& kind, OptimizerParamState& state) {
  StateParts parts;
  Fields fields(parts);
  kind.visit_state(state, fields);
  return parts.tensors;
}

bool fits(const at::Tensor& memory, const at::Tensor& values) {
  return memory.defined() && values.defined() && memory.sizes() == values.sizes() &&
         memory.options().type_equal(values.options()) && memory.device() == values.device();
}

// Moves the tensors of a new state into the memory of the state that it replaces.
void keep_memory(const OptimizerKind& kind, OptimizerParamState& before, OptimizerParamState& state) {
  const auto memory = tensors_of(kind, before);
  const auto values = tensors_of(kind, state);
  for (std::size_t i = 0; i < std::min(memory.size(), values.size()); ++i) {
    if (!fits(memory[i], values[i])) continue;
    memory[i].copy_(values[i]);
    values[i].set_data(memory[i]);
  }
}

void load_all(Optimizer& optimizer, const Dict& state_dict, TensorsRead tensors) {
  const auto& kind = kind_of(optimizer);
  if (auto* fused = dynamic_cast<FusedOptimizer*>(&optimizer)) fused->update_lr_tensors();
  const c10::NoGradGuard no_grad;
  const auto& groups = state_dict.at("param_groups").as_items();
  check_sizes(optimizer, groups);
  auto states = loaded_states(kind, optimizer, groups, state_dict.at("state").as_dict(), tensors);
  for (std::size_t g = 0; g < groups.size(); ++g) read_entries(optimizer, g, groups[g].as_dict());
  for (std::size_t g = 0; g < groups.size(); ++g) {
    auto& options = optimizer.param_groups()[g].options();
    read_options(options, groups[g].as_dict(), g);
    if (auto* fused = dynamic_cast<FusedOptions*>(&options)) fused->fill_lr_tensor(fused->lr_number());
  }
  auto before = std::exchange(optimizer.state(), {});
  for (auto& [key, state] : states) {
    if (const auto found = before.find(key); tensors == TensorsRead::adopted && found != before.end())
      keep_memory(kind, *found->second, *state);
    optimizer.state()[key] = std::move(state);
  }
}

}  // namespace

void load_states(Optimizer& optimizer, const Dict& state_dict) {
  load_all(optimizer, state_dict, TensorsRead::converted);
}

void restore_states(Optimizer& optimizer, const Dict& state_dict) {
  load_all(optimizer, state_dict, TensorsRead::adopted);
}

std::string packed_states(const Optimizer& optimizer) { return save_bytes(Value(states_of(optimizer))); }

void add_states(Optimizer& optimizer, const std::string& packed) {
  const c10::NoGradGuard no_grad;
  const auto& kind = kind_of(optimizer);
  const auto all = load_bytes(packed);
  std::int64_t index = 0;
  for (std::size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    const auto options = kind.options(optimizer, g);
    for (const auto& parameter : optimizer.param_groups()[g].params()) {
      const Value number(index++);
      if (const auto* saved = all.as_dict().find(number)) {
        optimizer.state()[parameter.unsafeGetTensorImpl()] = loaded_state(
            kind, optimizer, parameter, *options, number, saved->as_dict(), TensorsRead::adopted);
      }
    }
  }
}

namespace {

// A place in the tensor's autograd metadata. Autograd accumulates no gradient into rows, so it never runs.
struct RowsNote final : torch::autograd::PostAccumulateGradHook {
  explicit RowsNote(ParameterRows noted) : rows(std::move(noted)) {}
  void operator()(const at::Tensor& /*tensor*/) override {}
  ParameterRows rows;
};

}  // namespace

at::Tensor narrow_to_part(const at::Tensor& whole, at::IntArrayRef offsets, at::IntArrayRef sizes) {
  auto part = whole;
  for (std::size_t dim = 0; dim < sizes.size(); ++dim)
    part = part.narrow(static_cast<std::int64_t>(dim), offsets[dim], sizes[dim]);
  return part;
}

void note_rows(const at::Tensor& parameter, ParameterRows rows) {
  torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<RowsNote>(std::move(rows)));
}

const ParameterRows* rows_of(const at::Tensor& parameter) {
  if (torch::autograd::impl::get_autograd_meta(parameter) == nullptr) return nullptr;
  const auto* const note =
      dynamic_cast<const RowsNote*>(torch::autograd::impl::post_acc_grad_hooks(parameter).get());
  return note == nullptr ? nullptr : &note->rows;
}

}  // namespace lockstep::optim
