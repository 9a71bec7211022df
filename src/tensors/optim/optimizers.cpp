// SPDX-License-Identifier: BSD-3-Clause
#include <typeinfo>
#include <unordered_map>

#include <c10/core/GradMode.h>
#include <fmt/ranges.h>

#include "optim/optimizer_rules.h"
#include "optim/optimizer_states.h"
#include "optim/unaveraged.h"

namespace lockstep::optim {
namespace {

using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamGroup;

c10::IValue to_ivalue(const Value& value) {
  if (value.is<None>()) return {};
  if (value.is<bool>()) return value.as_bool();
  if (value.is<std::int64_t>()) return value.as_int();
  if (value.is<double>()) return value.as_double();
  if (value.is<std::string>()) return value.as_string();
  if (value.is<at::Tensor>()) return value.as_tensor();
  std::vector<c10::IValue> items;
  for (const auto& item : value.as_items()) items.push_back(to_ivalue(item));
  return c10::ivalue::Tuple::create(std::move(items));
}

Value from_ivalue(const c10::IValue& value) {
  if (value.isBool()) return value.toBool();
  if (value.isInt()) return value.toInt();
  if (value.isDouble()) return value.toDouble();
  if (value.isString()) return value.toStringRef();
  if (value.isTensor()) return value.toTensor();
  if (!value.isTuple()) return None();
  Tuple items;
  for (const auto& item : value.toTupleRef().elements()) items.items.push_back(from_ivalue(item));
  return items;
}

NamedOptions& named(OptimizerOptions& options) { return dynamic_cast<NamedOptions&>(options); }

}  // namespace

void NamedParamState::serialize(torch::serialize::InputArchive& archive) {
  for (const auto& key : archive.keys()) archive.read(key, tensors[key]);
}

void NamedParamState::serialize(torch::serialize::OutputArchive& archive) const {
  for (const auto& [name, tensor] : tensors) archive.write(name, tensor);
}

Dict NamedOptions::to_dict() const {
  const auto copy = clone();
  Dict dict;
  Fields fields(dict);
  named(*copy).visit_fields(fields);
  return dict;
}

void NamedOptions::from_dict(const Dict& dict, const std::string& owner, bool complete) {
  Fields fields(dict, owner, complete);
  visit_fields(fields);
}

void NamedOptions::serialize(torch::serialize::InputArchive& archive) {
  Dict dict;
  for (const auto& key : archive.keys()) {
    c10::IValue value;
    archive.read(key, value);
    dict.set(key, from_ivalue(value));
  }
  from_dict(dict, "the options in the archive", /*complete=*/false);
}

void NamedOptions::serialize(torch::serialize::OutputArchive& archive) const {
  for (const auto& [key, value] : to_dict()) archive.write(key.as_string(), to_ivalue(value));
}

bool NamedOptions::operator==(const NamedOptions& other) const {
  return typeid(*this) == typeid(other) && equal(to_dict(), other.to_dict());
}

void NamedOptimizer::begin(const std::vector<OptimizerParamGroup>& param_groups) {
  check_options(defaults());
  for (const auto& group : param_groups) add_param_group(group);
}

// set_options() and torch::optim::Optimizer::add_param_group() take options of any kind.
void NamedOptimizer::check_kind(const OptimizerOptions& options) const {
  const auto& own = defaults();
  if (typeid(options) == typeid(own)) return;
  throw_error<ArgumentError>(
      "{0}: a group has the options of another kind of optimizer; give it {0}::GroupOptions", name());
}

void NamedOptimizer::add_param_group(const OptimizerParamGroup& param_group) {
  auto options = defaults().clone();
  if (param_group.has_options()) {
    check_kind(param_group.options());
    check_options(param_group.options());
    const auto fresh = fresh_options()->to_dict();
    Dict given;
    for (const auto& [key, value] : dynamic_cast<const NamedOptions&>(param_group.options()).to_dict()) {
      const auto* plain = fresh.find(key);
      if (plain == nullptr || !equal(value, *plain)) given.set(key, value);
    }
    named(*options).from_dict(given, name(), /*complete=*/false);
  }
  Optimizer::add_param_group(checked_parameters(param_group.params()));
  param_groups().back().set_options(std::move(options));  // LibTorch would merge options of its own only
}

std::vector<at::Tensor> NamedOptimizer::checked_parameters(const std::vector<at::Tensor>& given) const {
  const auto index = param_groups().size();
  std::unordered_map<const void*, std::size_t> groups;
  for (std::size_t g = 0; g < index; ++g) {
    for (const auto& known : param_groups()[g].params()) groups.emplace(known.unsafeGetTensorImpl(), g);
  }
  std::vector<at::Tensor> parameters;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const auto& parameter = given[i];
    if (!parameter.defined() || !parameter.is_floating_point() || parameter.layout() != at::kStrided) {
      throw_error<ArgumentError>("{}: parameter {} of group {} is not a dense floating-point tensor", name(),
                                 i, index);
    }
    check_parameter(parameter);
    // One that comes again in a group, such as a shared weight, counts once.
    const auto [known, added] = groups.emplace(parameter.unsafeGetTensorImpl(), index);
    if (added) parameters.push_back(parameter);
    if (known->second != index) {
      throw_error<ArgumentError>(
          "{}: parameter {} of group {} is in group {} already; leave it out of one of them", name(), i,
          index, known->second);
    }
  }
  return parameters;
}

// The state has the dtype, the device and the shape of the parameter that it was made for.
void NamedOptimizer::check_kept(const Member& member, std::size_t i, std::size_t group) const {
  const auto& parameter = member.parameter;
  auto& known = member.state->parameter;
  if (!known) known.emplace(parameter.scalar_type(), parameter.device(), parameter.sizes().vec());
  if (known->dtype == parameter.scalar_type() && known->device == parameter.device() &&
      parameter.sizes() == at::IntArrayRef(known->sizes))
    return;
  const auto text = [](at::ScalarType dtype, at::IntArrayRef sizes, at::Device device) {
    return fmt::format("{}[{}] on {}", c10::toString(dtype), fmt::join(sizes, ", "), device.str());
  };
  throw_error<ArgumentError>(
      "{}: parameter {} of group {} was {} in the last step and is {}; when a parameter has become another "
      "kind of tensor, make a new optimizer and load the old one's state_dict() into it",
      name(), i, group, text(known->dtype, known->sizes, known->device),
      text(parameter.scalar_type(), parameter.sizes(), parameter.device()));
}

std::vector<NamedOptimizer::Member> NamedOptimizer::members_of(std::size_t index) {
  auto& group = param_groups()[index];
  std::vector<Member> members;
  for (std::size_t i = 0; i < group.params().size(); ++i) {
    const auto& parameter = group.params()[i];
    const auto& gradient = parameter.grad();
    if (!gradient.defined()) continue;
    if (gradient.is_sparse() != takes_sparse()) {
      throw_error<ArgumentError>("{}: parameter {} of group {} has a {} gradient; use {} for it", name(), i,
                                 index, gradient.is_sparse() ? "sparse" : "dense",
                                 gradient.is_sparse() ? "SparseAdam" : "another optimizer, such as Adam,");
    }
    check_parameter(parameter);
    auto& state = this->state()[parameter.unsafeGetTensorImpl()];
    if (!state) state = std::make_unique<NamedParamState>();
    Member member{parameter, gradient, &dynamic_cast<NamedParamState&>(*state)};
    if (member.state->tensors.empty()) begin_state(member, group.options());
    check_kept(member, i, index);
    members.push_back(std::move(member));
  }
  return members;
}

at::Tensor NamedOptimizer::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const c10::AutoGradMode with_gradients(true);
    loss = closure();
  }
  refuse_step(name(), param_groups());
  const c10::NoGradGuard no_grad;
  std::vector<std::vector<Member>> groups;
  for (std::size_t g = 0; g < param_groups().size(); ++g) {
    check_kind(param_groups()[g].options());
    groups.push_back(members_of(g));
  }
  step_groups(groups);
  return loss;
}

Dict NamedOptimizer::state_dict() const { return states_of_rank(*this); }
void NamedOptimizer::load_state_dict(const Dict& state_dict) { load_states(*this, state_dict); }

// The gradient of the parameter has its shape.
std::unique_ptr<NamedParamState> NamedOptimizer::new_state(const at::Tensor& parameter,
                                                           const OptimizerOptions& options) const {
  auto state = std::make_unique<NamedParamState>();
  begin_state({parameter, parameter, state.get()}, options);
  return state;
}

}  // namespace lockstep::optim
