// SPDX-License-Identifier: BSD-3-Clause
// The functions of FSDPModule.
#include <algorithm>
#include <cmath>
#include <utility>

#include <c10/util/Type.h>

#include <lockstep/base/error.h>
#include <lockstep/fsdp/fully_shard.h>

#include "base/caller_place.h"
#include "base/throw_error.h"
#include "fsdp/parameter_group.h"
#include "fsdp/tree.h"
#include "modules/experts.h"

namespace lockstep {
namespace {

using fsdp::group_of;
using fsdp::ParameterGroup;
using fsdp::Tree;
using GroupPointer = std::shared_ptr<ParameterGroup>;

std::size_t index_in(const ParameterGroup& group, const at::Tensor& tensor) {
  const auto& all = group.parameters();
  const auto it =
      std::ranges::find_if(all, [&](const auto& each) { return each.lock_whole().is_same(tensor); });
  return static_cast<std::size_t>(it - all.begin());
}

at::Tensor converted(const at::Tensor& tensor, std::optional<at::ScalarType> dtype) {
  return dtype && tensor.is_floating_point() ? tensor.to(*dtype) : tensor;
}

}  // namespace

void FSDPModule::set_entries(const torch::nn::Module& module) {
  const auto experts = modules::expert_tensors(module);
  for (const auto& [name, tensor] : modules::distinct(module.named_parameters())) {
    if (auto owner = group_of(tensor)) {
      const auto index = index_in(*owner, tensor);
      entries_.push_back({.name = name, .group = std::move(owner), .index = index});
    } else {
      entries_.push_back({.name = name, .ignored = tensor});
    }
    const auto is_same = [&, &own = tensor](const auto& each) { return each.tensor.is_same(own); };
    const auto expert = std::ranges::find_if(experts, is_same);
    if (expert != experts.end()) entries_.back().expert_ranks = expert->ranks;
  }
  module_ = module.weak_from_this();
  for (const auto& [name, tensor] : modules::distinct(module.named_buffers()))
    buffers_.push_back({name, tensor});
  aliases_ = modules::aliases_of(module);
}

std::optional<FSDPModule> FSDPModule::find(ConstModuleRef module) {
  FSDPModule found;
  found.set_entries(module);
  const auto all = found.groups(true);
  if (all.empty()) return std::nullopt;
  const auto own = std::ranges::find_if(all, [&](const auto& group) { return group->module() == &*module; });
  if (own != all.end()) found.own_ = *own;
  const auto policies =
      all.front()->tree()->locked([&](const fsdp::StepCalls&) { return all.front()->forward_policies; });
  const auto policy =
      std::ranges::find_if(policies, [&](const auto& each) { return each->module == &*module; });
  if (policy != policies.end()) found.forward_ = *policy;
  return found;
}

std::vector<at::Tensor> FSDPModule::parameters() const {
  std::vector<at::Tensor> all;
  for (auto& [name, parameter] : named_parameters()) all.push_back(std::move(parameter));
  return all;
}

std::shared_ptr<torch::nn::Module> FSDPModule::module() const {
  if (auto owner = module_.lock()) return std::const_pointer_cast<torch::nn::Module>(std::move(owner));
  throw ArgumentError(
      "FSDPModule::module(): no shared_ptr owns the module; construct it as a TORCH_MODULE holder or by "
      "std::make_shared(), and keep it");
}

std::vector<FSDPModule::NamedParameter> FSDPModule::named_parameters() const {
  std::vector<NamedParameter> all;
  for (const auto& entry : entries_)
    all.push_back({entry.name, entry.group ? entry.group->parameters()[entry.index].shard : entry.ignored});
  return all;
}

std::vector<GroupPointer> FSDPModule::groups(bool recurse) const {
  if (!recurse) return own_ ? std::vector{own_} : std::vector<GroupPointer>{};
  std::vector<GroupPointer> all;
  for (const auto& entry : entries_) {
    if (entry.group && std::ranges::find(all, entry.group) == all.end()) all.push_back(entry.group);
  }
  return all;
}

void FSDPModule::zero_grad() {
  Tree::change(groups(true), [](ParameterGroup& group) { group.gradients().zero(); });
  for (const auto& entry : entries_) {
    if (!entry.group) entry.ignored.mutable_grad().reset();
  }
}

void FSDPModule::unshard() const {
  if (own_) own_->tree()->hold(*own_);
}

UnshardHandle FSDPModule::unshard_async() const {
  UnshardHandle handle;
  if (own_) own_->tree()->prefetch(*own_);
  handle.group_ = own_;
  return handle;
}

void UnshardHandle::wait() {
  if (const auto group = std::exchange(group_, nullptr)) group->tree()->hold(*group);
}

std::vector<std::weak_ptr<ParameterGroup>> FSDPModule::groups_to_prefetch(
    const std::vector<FSDPModule>& modules, const char* function, std::source_location where) const {
  std::vector<std::weak_ptr<ParameterGroup>> all;
  for (const auto& module : modules) {
    if (!own_ || !module.own_ || module.own_->tree() != own_->tree()) {
      throw_error<ArgumentError>(
          "{}{}: call it after fully_shard() of the module that has all of these modules, each with "
          "parameters of its own",
          line_prefix(where), function);
    }
    all.emplace_back(module.own_);
  }
  return all;
}

void FSDPModule::set_modules_to_forward_prefetch(const std::vector<FSDPModule>& modules,
                                                 std::source_location where) {
  const CallerPlace place(where);
  const auto all = groups_to_prefetch(modules, "set_modules_to_forward_prefetch()", where);
  Tree::change(groups(false), [&](ParameterGroup& group) { group.prefetch[fsdp::UsePlan::forward] = all; });
}

void FSDPModule::set_modules_to_backward_prefetch(const std::vector<FSDPModule>& modules,
                                                  std::source_location where) {
  const CallerPlace place(where);
  const auto all = groups_to_prefetch(modules, "set_modules_to_backward_prefetch()", where);
  Tree::change(groups(false), [&](ParameterGroup& group) { group.prefetch[fsdp::UsePlan::backward] = all; });
}

void FSDPModule::reshard() const {
  if (own_) return own_->tree()->reshard(*own_);
  const auto all = groups(true);
  const auto shared = std::ranges::find_if(all, &ParameterGroup::is_shared);
  if (shared != all.end()) (*shared)->tree()->reshard(**shared);
}

void FSDPModule::set_requires_gradient_sync(bool requires_gradient_sync, bool recurse) {
  Tree::change(groups(recurse), [&](ParameterGroup& group) {
    group.gradients().requires_all_reduce = requires_gradient_sync;
    group.gradients().set_requires_sync(requires_gradient_sync);
  });
}

void FSDPModule::set_requires_all_reduce(bool requires_all_reduce, bool recurse) {
  Tree::change(groups(recurse),
               [&](ParameterGroup& group) { group.gradients().requires_all_reduce = requires_all_reduce; });
}

void FSDPModule::set_gradient_divide_factor(double factor) {
  if (!(factor > 0) || std::isinf(factor))
    throw_error<ArgumentError>("FSDPModule::set_gradient_divide_factor(): the factor is {}", factor);
  Tree::change(groups(false), [&](ParameterGroup& group) { group.gradients().divide_factor = factor; });
}

void FSDPModule::set_reshard_after_backward(bool reshard_after_backward, bool recurse) {
  Tree::change(groups(recurse),
               [&](ParameterGroup& group) { group.reshard_after_backward = reshard_after_backward; });
}

void FSDPModule::set_reshard_after_forward(bool reshard_after_forward, bool recurse) {
  Tree::change(groups(recurse),
               [&](ParameterGroup& group) { group.set_reshard_after_forward(reshard_after_forward); });
}

FsdpStats FSDPModule::stats() const {
  FsdpStats stats;
  const auto all = groups(true);
  if (all.empty()) return stats;
  all.front()->tree()->locked([&](const fsdp::StepCalls& calls) {
    calls.record.add_to(stats);
    for (const auto& group : all)
      stats.groups.push_back({.last = group->traffic().last, .total = group->traffic().total});
  });
  for (const auto& entry : entries_) {
    const auto group = std::ranges::find(all, entry.group) - all.begin();
    if (entry.group) stats.groups[static_cast<std::size_t>(group)].parameters.push_back(entry.name);
  }
  return stats;
}

void FSDPModule::trace(const std::string& path, int steps) const {
  const auto all = groups(true);
  if (all.empty()) throw ArgumentError("trace: fully_shard() has no parameter of the module");
  all.front()->tree()->locked([&](fsdp::StepCalls& calls) {
    calls.record.begin_trace(path, steps);
    for (const auto& group : all)
      group->traffic().name = std::ranges::find(entries_, group, &Entry::group)->name;
  });
}

bool FSDPModule::shares_memory() const {
  return std::ranges::any_of(groups(true), &ParameterGroup::is_shared);
}

void FSDPModule::begin_forward(const torch::nn::Module* module) const {
  if (!forward_) throw ArgumentError("FSDPModule::forward(): the module was not given to fully_shard()");
  if (module == nullptr || module != forward_->module) {
    throw_error<ArgumentError>("{}: forward(): the first argument is another module, {}", forward_->describe,
                               module == nullptr ? "without a value" : module->name());
  }
  forward_->is_used = true;
  const auto first = std::ranges::find_if(entries_, [](const auto& each) { return each.group != nullptr; });
  if (first == entries_.end()) return;
  first->group->tree()->begin_forward();
}

at::Tensor FSDPModule::input(const at::Tensor& tensor) const {
  const auto& policy = forward_->mp_policy;
  return policy.cast_forward_inputs ? converted(tensor, policy.param_dtype) : tensor;
}

at::Tensor FSDPModule::output(const at::Tensor& tensor) const {
  return converted(tensor, forward_->mp_policy.output_dtype);
}

void FSDPModule::refuse_output(const char* type) const {
  if (!forward_->mp_policy.output_dtype) return;
  throw_error<ArgumentError>(
      "{}: forward() returns {}, in which tensors cannot be found, as output_dtype needs it; give it a "
      "visit_tensors() or specialize lockstep::TensorVisitor",
      forward_->describe, c10::demangle(type));
}

}  // namespace lockstep
