// SPDX-License-Identifier: BSD-3-Clause
#include "tensor_parallel/parallel_parameter.h"

#include <algorithm>
#include <array>
#include <utility>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <c10/core/GradMode.h>

#include "base/caller_place.h"
#include "base/throw_error.h"
#include "tensor_parallel/module_check.h"
#include "tensor_parallel/redistribute.h"

namespace lockstep::tensor_parallel {
namespace {

// Tensors of the same shape with other values.
constexpr std::array<std::string_view, 11> kFactories{
    "aten::empty_like", "aten::zeros_like", "aten::ones_like",        "aten::full_like",
    "aten::rand_like",  "aten::randn_like", "aten::new_empty",        "aten::new_zeros",
    "aten::new_ones",   "aten::new_full",   "aten::new_empty_strided"};
constexpr std::array<std::string_view, 4> kCopies{"aten::to", "aten::_to_copy", "aten::clone",
                                                  "aten::contiguous"};
// Of lists of tensors, without gradients.
constexpr std::array<std::string_view, 3> kJoins{"aten::cat", "aten::stack", "aten::_foreach_norm"};

bool records_gradients(at::ArrayRef<c10::IValue> arguments, const ParallelParameter& parameter) {
  const auto is_recorded = [&](const at::Tensor& tensor) {
    return tensor.defined() && tensor.requires_grad() && parallel_parameter(tensor) == &parameter;
  };
  if (!c10::GradMode::is_enabled()) return false;
  return std::ranges::any_of(arguments, [&](const c10::IValue& value) {
    if (value.isTensor()) return is_recorded(value.toTensor());
    if (!value.isTensorList()) return false;
    const auto list = value.toTensorVector();
    return std::ranges::any_of(list, is_recorded);
  });
}

// Whether the operator writes into a part.
bool writes(const c10::FunctionSchema& schema, at::ArrayRef<c10::IValue> arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto* const alias = schema.arguments()[i].alias_info();
    if (alias == nullptr || !alias->isWrite()) continue;
    if (arguments[i].isTensorList()) return true;
    if (arguments[i].isTensor() && intercept::is_operator_guarded(arguments[i].toTensor())) return true;
  }
  return false;
}

bool returns_tensors(const c10::FunctionSchema& schema) {
  return std::ranges::any_of(schema.returns(), [](const auto& each) {
    return each.type()->isSubtypeOf(*c10::TensorType::get()) ||
           each.type()->isSubtypeOf(*c10::ListType::ofTensors());
  });
}

// Views of a part have its guard.
bool returns_view(const c10::FunctionSchema& schema) {
  if (schema.returns().empty()) return false;
  const auto* const alias = schema.returns()[0].alias_info();
  return alias != nullptr && !alias->isWrite();
}

// The operator does with a part of the parameter what it would do with that part of the whole one.
bool treats_as_data(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments, bool records) {
  const auto& schema = op.schema();
  if (!returns_tensors(schema) || returns_view(schema) || writes(schema, arguments)) return true;
  if (std::ranges::find(kFactories, schema.name()) != kFactories.end()) return true;
  if (records) return false;
  return op.hasTag(at::Tag::pointwise) || schema.name().starts_with("aten::_foreach_") ||
         std::ranges::find(kJoins, schema.name()) != kJoins.end();
}

// Gradients of the parameter, or through it, may follow.
bool is_used_in_training(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                         const ParallelParameter& parameter) {
  if (!c10::GradMode::is_enabled()) return false;
  const auto arguments = torch::jit::last(stack, op.schema().arguments().size());
  return records_gradients(arguments, parameter) || !treats_as_data(op, arguments, /*records=*/false);
}

void replace_arguments(torch::jit::Stack& stack, std::size_t count, at::Tensor result) {
  torch::jit::drop(stack, count);
  torch::jit::push(stack, std::move(result));
}

// Operators on parts of a sequence take whole parameters whose gradients are summed over the ranks.
bool run_with_summed_gradients(const c10::OperatorHandle& op, torch::jit::Stack& stack,
                               const ParallelParameter& parameter) {
  const auto count = op.schema().arguments().size();
  std::vector<std::size_t> places;
  std::vector<at::Tensor> tensors;
  for (auto i = stack.size() - count; i < stack.size(); ++i) {
    if (!stack[i].isTensor() || !intercept::is_operator_guarded(stack[i].toTensor())) continue;
    const auto* const other = parallel_parameter(stack[i].toTensor());
    if (other == nullptr || other->cut() || other->group().backend() != parameter.group().backend()) continue;
    places.push_back(i);
    tensors.push_back(stack[i].toTensor());
  }
  const auto inputs = with_summed_gradients(tensors, parameter.group());
  for (std::size_t i = 0; i < places.size(); ++i)
    stack[places[i]] = intercept::without_operator_guard(inputs[i]);
  op.callBoxed(stack);
  return true;
}

// A module's to() and clone() put copies in the places of parameters. These would have no rules.
void run_if_no_copy(const c10::OperatorHandle& op, torch::jit::Stack& stack,
                    const ParallelParameter& parameter) {
  const intercept::WithoutGuards plain(intercept::WithoutGuards::Kinds::operators);
  op.callBoxed(stack);
  if (parallel_parameter(stack.back().toTensor()) == &parameter) return;
  throw_error<Error>(
      "{} is in a plan of parallelize_module(), and a copy by {} is not; move, convert or clone the module "
      "before parallelize_module(), or copy this rank's part as plain data with detach()",
      parameter.name(), op.schema().name());
}

}  // namespace

ParallelParameter::ParallelParameter(std::string name, ProcessGroup group, std::optional<std::int64_t> dim,
                                     std::vector<std::int64_t> sizes, std::source_location where)
    : name_(std::move(name)),
      group_(std::move(group)),
      sizes_(std::move(sizes)),
      part_sizes_(sizes_),
      where_(where) {
  if (!dim) return;
  auto& size = part_sizes_[static_cast<std::size_t>(*dim)];
  const Chunk own(size, group_.size(), group_.rank());
  size = own.count;
  cut_ = modules::Cut{group_, *dim, own.first, own.chunk};
}

bool ParallelParameter::run(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const CallerPlace place(where_);
  const auto& schema = op.schema();
  if (schema.name() == "aten::detach" || schema.name() == "aten::alias") {
    const intercept::WithoutGuards plain(intercept::WithoutGuards::Kinds::operators);
    const auto view = intercept::without_operator_guard(stack.back().toTensor());
    replace_arguments(stack, 1, schema.name() == "aten::detach" ? view.detach() : view);
    return true;
  }
  if (check_ == nullptr) return run_checked(op, stack);
  const auto check = check_;  // an operator may replace the parameter
  if (checks_) {
    check->check();
    if (is_used_in_training(op, stack, *this)) check->agree_on_trained();
  }
  return check->run([&] { return run_checked(op, stack); });
}

bool ParallelParameter::run_checked(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const auto& schema = op.schema();
  if (std::ranges::find(kCopies, schema.name()) != kCopies.end()) {
    run_if_no_copy(op, stack, *this);
    return true;
  }
  const auto arguments = torch::jit::last(stack, schema.arguments().size());
  const bool records = records_gradients(arguments, *this);
  if (run_rule(op, stack)) return true;
  if (!cut_) {
    if (!rules_.empty() && run_rule_of_other(op, stack)) return true;
    const bool sums =
        records && returns_tensors(schema) && !returns_view(schema) && !writes(schema, arguments);
    return sums && run_with_summed_gradients(op, stack, *this);
  }
  if (treats_as_data(op, arguments, records)) return false;
  if (run_rule_of_other(op, stack)) return true;
  throw_error<Error>(
      "{} is cut over {} ranks along dimension {}, and {} has no rule for such a parameter; use it in the "
      "layers of the plan only, or take this rank's part as plain data with detach()",
      name_, group_.size(), cut_->dim, schema.name());
}

bool ParallelParameter::run_rule(const c10::OperatorHandle& op, torch::jit::Stack& stack) const {
  const auto count = op.schema().arguments().size();
  for (const auto& rule : rules_) {
    auto result = rule({.parameter = *this,
                        .op = op,
                        .name = op.schema().name(),
                        .arguments = torch::jit::last(stack, count)});
    if (!result) continue;
    replace_arguments(stack, count, std::move(*result));
    return true;
  }
  return false;
}

bool ParallelParameter::run_rule_of_other(const c10::OperatorHandle& op, torch::jit::Stack& stack) const {
  for (const c10::IValue& value : torch::jit::last(stack, op.schema().arguments().size())) {
    if (!value.isTensor() || !intercept::is_operator_guarded(value.toTensor())) continue;
    const auto* const other = parallel_parameter(value.toTensor());
    if (other != nullptr && other != this && other->cut() && other->run_rule(op, stack)) return true;
  }
  return false;
}

ParallelParameter* parallel_parameter(const at::Tensor& tensor) {
  return dynamic_cast<ParallelParameter*>(intercept::operator_guard_of(tensor));
}

}  // namespace lockstep::tensor_parallel
