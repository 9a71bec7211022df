// SPDX-License-Identifier: BSD-3-Clause
#include <cmath>

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <fmt/ranges.h>

#include <lockstep/checkpoint/state_dict.h>
#include <lockstep/optim/optimizers.h>

#include "base/throw_error.h"
#include "optim/group_entries.h"
#include "serialize/plain_values.h"
#include "state/optimizer_fields.h"
#include "state/row_states.h"

namespace lockstep {
namespace {

using serialize::number_of;
using torch::optim::Optimizer;
using Betas = std::tuple<double, double>;
using Tensors = std::vector<at::Tensor>;

// Python counts steps in a tensor, but for LBFGS.
template <typename Fields>
constexpr bool kCountsInTensor = !std::is_same_v<Fields, state::LBFGSFields>;

template <typename Fields>
constexpr bool kIsFused = requires { Fields::fused; };

template <typename Items>
List tensor_list(const Items& tensors) {
  List list;
  for (const auto& tensor : tensors) {
    list.items.push_back(tensor.defined() ? Value(tensor.detach()) : Value(None{}));
  }
  return list;
}

// A group may have options of any class. A fused optimizer also accepts LibTorch's.
template <typename Fields>
typename Fields::Options options_of(const torch::optim::OptimizerParamGroup& group, std::size_t index) {
  const auto& options = group.options();
  if (const auto* own = dynamic_cast<const typename Fields::Options*>(&options)) return *own;
  if constexpr (kIsFused<Fields>) {
    const auto* plain = dynamic_cast<const typename Fields::PlainOptions*>(&options);
    if (plain != nullptr) return typename Fields::Options(*plain);
  }
  throw_error<ArgumentError>("group {} of the optimizer has the options of another kind, {}; give it {}",
                             index, c10::demangle(typeid(options).name()),
                             c10::demangle(typeid(typename Fields::Options).name()));
}

// Writing.

class FieldWriter {
 public:
  FieldWriter(Dict& dict, bool step_as_tensor) : dict_(dict), step_as_tensor_(step_as_tensor) {}

  void operator()(const char* name, double value) const { dict_.set(name, value); }
  void operator()(const char* name, bool value) const { dict_.set(name, value); }
  void operator()(const char* name, std::int64_t value) const {
    if (step_as_tensor_ && std::string_view(name) == "step") {
      dict_.set(name, at::scalar_tensor(value, at::kFloat));
    } else {
      dict_.set(name, value);
    }
  }
  void operator()(const char* name, const Betas& value) const {
    dict_.set(name, Tuple{std::get<0>(value), std::get<1>(value)});
  }
  void operator()(const char* name, const at::Tensor& value) const {
    if (value.defined()) dict_.set(name, value.detach());
  }
  void operator()(const char* name, const std::deque<at::Tensor>& value) const {
    dict_.set(name, tensor_list(value));
  }
  void operator()(const char* name, const std::optional<Tensors>& value) const {
    if (value) dict_.set(name, tensor_list(*value));
  }
  template <typename Plain>
  void operator()(const char* name, const std::optional<Plain>& value) const {
    dict_.set(name, value ? Value(*value) : Value());
  }

 private:
  Dict& dict_;
  bool step_as_tensor_;
};

template <typename Fields>
Dict group_dict(const torch::optim::OptimizerParamGroup& group, std::size_t group_index, std::int64_t first) {
  Dict dict;
  const auto options = options_of<Fields>(group, group_index);
  Fields::options(options, FieldWriter(dict, false));
  for (const auto& [key, value] : Fields::constants()) dict.set(key, value);
  if constexpr (std::is_same_v<Fields, state::LBFGSFields>) {
    // Python computes it in the constructor and expects a number.
    if (!options.max_eval()) dict.set("max_eval", options.max_iter() * 5 / 4);
  }
  List indices;
  for (std::size_t i = 0; i < group.params().size(); ++i)
    indices.items.emplace_back(first + std::ssize(indices.items));
  dict.set("params", std::move(indices));
  return dict;
}

template <typename Fields>
Dict dict_of(const Optimizer& optimizer) {
  Dict states;
  List groups;
  std::int64_t index = 0;
  for (const auto& group : optimizer.param_groups()) {
    const auto group_index = groups.items.size();
    groups.items.emplace_back(group_dict<Fields>(group, group_index, index));
    optim::write_entries(optimizer, group_index, groups.items.back().as_dict());
    for (const auto& parameter : group.params()) {
      const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (found != optimizer.state().end()) {
        Dict state;
        const auto& kept = static_cast<const typename Fields::State&>(*found->second);
        Fields::state(kept, FieldWriter(state, kCountsInTensor<Fields>));
        states.set(index, std::move(state));
      }
      ++index;
    }
  }
  return {{"state", std::move(states)}, {"param_groups", std::move(groups)}};
}

// Reading.

class FieldReader {
 public:
  // `parameter` determines the device of tensors; nullptr for hyperparameters.
  FieldReader(const Dict& dict, std::string where, const at::Tensor* parameter, bool same_shape)
      : dict_(dict), where_(std::move(where)), parameter_(parameter), same_shape_(same_shape) {}

  void operator()(const char* name, double& value) const {
    // Python's LBFGS has no `t` and no `prev_loss` when it found nothing to do.
    if (is_absent_for_lbfgs(name)) return;
    value = number_of(required(name));
  }
  void operator()(const char* name, bool& value) const {
    // Older versions of Python's optimizers do not have it.
    const bool may_be_absent = std::string_view(name) == "maximize" && !dict_.contains(name);
    value = !may_be_absent && required(name).as_bool();
  }
  void operator()(const char* name, std::int64_t& value) const {
    const auto given = number_of(required(name));
    constexpr double most = 9e18;
    if (!(std::abs(given) < most))
      throw_error<CheckpointError>("{}: {} is {}, not a count", where_, name, given);
    value = static_cast<std::int64_t>(given);
  }
  void operator()(const char* name, Betas& value) const {
    const auto& pair = required(name).as_items();
    if (pair.size() != 2) throw_error<CheckpointError>("{}: {} should be two numbers", where_, name);
    value = {number_of(pair[0]), number_of(pair[1])};
  }
  void operator()(const char* name, at::Tensor& value) const {
    if (std::string_view(name) == "step") {
      std::int64_t count = 0;
      (*this)(name, count);
      value = at::full({}, count, parameter_->options().dtype(at::kFloat).requires_grad(false));
      return;
    }
    const auto* given = find(name);
    if (given == nullptr) return;
    value = tensor(name, given->is<at::Tensor>() ? given->as_tensor() : at::scalar_tensor(number_of(*given)));
  }
  void operator()(const char* name, std::deque<at::Tensor>& value) const {
    const auto* given = find(name);
    if (given == nullptr) return;
    for (const auto& item : given->as_items()) value.push_back(tensor(name, item.as_tensor()));
  }
  void operator()(const char* name, std::optional<Tensors>& value) const {
    const auto* given = find(name);
    if (given == nullptr) return;
    value.emplace();
    for (const auto& item : given->as_items()) {
      value->push_back(item.is<None>() ? at::Tensor() : tensor(name, item.as_tensor()));
    }
  }
  void operator()(const char* name, std::optional<std::int64_t>& value) const {
    const auto& given = required(name);
    value = given.is<None>() ? std::nullopt : std::optional(given.as_int());
  }
  void operator()(const char* name, std::optional<std::string>& value) const {
    const auto& given = required(name);
    value = given.is<None>() ? std::nullopt : std::optional(given.as_string());
  }

 private:
  bool is_absent_for_lbfgs(const char* name) const {
    const std::string_view text(name);
    return parameter_ != nullptr && (text == "t" || text == "prev_loss") && !dict_.contains(name);
  }

  // nullptr for None, too.
  const Value* find(const char* name) const {
    const auto* value = dict_.find(name);
    return value == nullptr || value->is<None>() ? nullptr : value;
  }

  const Value& required(const char* name) const {
    if (const auto* value = dict_.find(name)) return *value;
    throw_error<CheckpointError>("{} has no '{}': is the checkpoint of another kind of optimizer?", where_,
                                 name);
  }

  at::Tensor tensor(const char* name, const at::Tensor& given) const {
    if (same_shape_ && given.sizes() != parameter_->sizes()) {
      throw_error<CheckpointError>("{}: {} has shape [{}], but its parameter [{}]", where_, name,
                                   fmt::join(given.sizes(), ", "), fmt::join(parameter_->sizes(), ", "));
    }
    auto options = at::TensorOptions().device(parameter_->device());
    options =
        options.dtype(parameter_->is_floating_point() ? parameter_->scalar_type() : given.scalar_type());
    // The optimizer changes it in place; the dict is the caller's.
    return given.detach().to(options, /*non_blocking=*/false, /*copy=*/true);
  }

  const Dict& dict_;
  std::string where_;
  const at::Tensor* parameter_;
  bool same_shape_;
};

void refuse_maximize(const Dict& group) {
  const auto* maximize = group.find("maximize");
  if (maximize != nullptr && maximize->is<bool>() && maximize->as_bool()) {
    throw CheckpointError(
        "the checkpoint's optimizer has maximize=True, which LibTorch's optimizers do not support: negate "
        "the loss");
  }
}

// Only this entry distinguishes Adam from AdamW. Older versions of PyTorch do not have it.
template <typename Fields>
void refuse_other_kind(const Dict& group) {
  const auto own = Fields::constants();
  const auto* wanted = own.find("decoupled_weight_decay");
  const auto* given = group.find("decoupled_weight_decay");
  if (wanted == nullptr || given == nullptr || !given->is<bool>() || given->as_bool() == wanted->as_bool())
    return;
  throw_error<CheckpointError>("the checkpoint is of {}, but the optimizer is {}",
                               given->as_bool() ? "AdamW" : "Adam", Fields::name);
}

template <typename Fields>
bool has_contents(const typename Fields::State& state) {
  // SGD takes a state without momentum for one with it.
  if constexpr (std::is_base_of_v<state::SGDFields, Fields>) return state.momentum_buffer().defined();
  return true;
}

template <typename Fields>
struct NewContents {
  std::vector<typename Fields::Options> options;
  std::vector<std::pair<void*, std::unique_ptr<typename Fields::State>>> states;
};

template <typename Fields>
NewContents<Fields> read_all(Optimizer& optimizer, const Dict& dict) {
  NewContents<Fields> contents;
  const auto& groups = dict.at("param_groups").as_items();
  const auto& states = dict.at("state").as_dict();
  if (groups.size() != optimizer.param_groups().size()) {
    throw_error<CheckpointError>(
        "loaded state dict has a different number of parameter groups: {} instead of {}", groups.size(),
        optimizer.param_groups().size());
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto& given = groups[g].as_dict();
    auto& own = optimizer.param_groups()[g];
    const auto& indices = given.at("params").as_items();
    if (indices.size() != own.params().size()) {
      throw_error<CheckpointError>(
          "loaded state dict contains a parameter group that doesn't match the size of "
          "optimizer's group: group {} has {} parameters instead of {}",
          g, indices.size(), own.params().size());
    }
    if constexpr (!kIsFused<Fields>) refuse_maximize(given);
    refuse_other_kind<Fields>(given);
    auto options = options_of<Fields>(own, g);
    Fields::options(options, FieldReader(given, fmt::format("param_groups[{}]", g), nullptr, false));
    contents.options.push_back(options);
    for (std::size_t i = 0; i < indices.size(); ++i) {
      const auto* state = states.find(indices[i]);
      if (state == nullptr || state->as_dict().empty()) continue;
      const auto& parameter = own.params()[i];
      auto made = std::make_unique<typename Fields::State>();
      Fields::state(*made, FieldReader(state->as_dict(), fmt::format("state[{}]", repr(indices[i], 20)),
                                       &parameter, kCountsInTensor<Fields>));
      if (has_contents<Fields>(*made)) {
        contents.states.emplace_back(parameter.unsafeGetTensorImpl(), std::move(made));
      }
    }
  }
  return contents;
}

template <typename Fields>
void load_into(Optimizer& optimizer, const Dict& dict) {
  if constexpr (kIsFused<Fields>) static_cast<optim::FusedOptimizer&>(optimizer).update_lr_tensors();
  auto contents = read_all<Fields>(optimizer, dict);
  const auto& groups = dict.at("param_groups").as_items();
  for (std::size_t g = 0; g < groups.size(); ++g) optim::read_entries(optimizer, g, groups[g].as_dict());
  for (std::size_t g = 0; g < contents.options.size(); ++g) {
    auto& options = static_cast<typename Fields::Options&>(optimizer.param_groups()[g].options());
    options = contents.options[g];
    if constexpr (kIsFused<Fields>) options.fill_lr_tensor(options.lr());
  }
  optimizer.state().clear();
  for (auto& [key, state] : contents.states) optimizer.state()[key] = std::move(state);
}

// Calls `action` with the fields of the optimizer's kind.
template <typename Action>
auto with_fields(const Optimizer& optimizer, Action action) {
  using namespace state;
  if (dynamic_cast<const torch::optim::SGD*>(&optimizer)) return action(SGDFields());
  if (dynamic_cast<const torch::optim::AdamW*>(&optimizer)) return action(AdamWFields());
  if (dynamic_cast<const torch::optim::Adam*>(&optimizer)) return action(AdamFields());
  if (dynamic_cast<const torch::optim::RMSprop*>(&optimizer)) return action(RMSpropFields());
  if (dynamic_cast<const torch::optim::Adagrad*>(&optimizer)) return action(AdagradFields());
  if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer)) return action(LBFGSFields());
  if (dynamic_cast<const optim::FusedSGD*>(&optimizer)) return action(FusedSGDFields());
  if (dynamic_cast<const optim::FusedAdamW*>(&optimizer)) return action(FusedAdamWFields());
  if (dynamic_cast<const optim::FusedAdam*>(&optimizer)) return action(FusedAdamFields());
  throw_error<ArgumentError>(
      "state dicts are supported for the optimizers SGD, Adam, AdamW (each also fused), RMSprop, "
      "Adagrad, LBFGS and those of optim/optimizers.h; this is {}",
      c10::demangle(typeid(optimizer).name()));
}

// The member is protected, but may be named through a class that derives from the owner.
struct SchedulerAccess : torch::optim::LRScheduler {
  static constexpr auto count() { return &SchedulerAccess::step_count_; }
  static auto current() { return &SchedulerAccess::get_current_lrs; }
};

}  // namespace

Dict states_of_rank(const Optimizer& optimizer) {
  if (const auto* named = dynamic_cast<const optim::NamedOptimizer*>(&optimizer)) return named->state_dict();
  return with_fields(optimizer, [&](auto fields) { return dict_of<decltype(fields)>(optimizer); });
}

Dict state_dict(const Optimizer& optimizer) {
  optim::check_complete(optimizer);
  return state::with_sharded_states(optimizer, states_of_rank(optimizer));
}

void load_state_dict(Optimizer& optimizer, const Dict& given) {
  const auto state_dict = state::with_own_rows(optimizer, given);
  try {
    if (auto* named = dynamic_cast<optim::NamedOptimizer*>(&optimizer)) {
      named->load_state_dict(state_dict);
      return;
    }
    with_fields(optimizer, [&](auto fields) { load_into<decltype(fields)>(optimizer, state_dict); });
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

void load_state_dict(torch::optim::LRScheduler& scheduler, const Dict& state_dict) {
  const auto count = state_dict.at("last_epoch").as_int();
  if (count < 0) throw_error<CheckpointError>("the scheduler's last_epoch is {}, below 0", count);
  scheduler.*SchedulerAccess::count() = static_cast<unsigned>(count);
}

}  // namespace lockstep
