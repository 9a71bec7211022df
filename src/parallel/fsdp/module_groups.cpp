// SPDX-License-Identifier: BSD-3-Clause
#include "fsdp/module_groups.h"

#include <algorithm>
#include <mutex>

#include "fsdp/parameter_group.h"
#include "fsdp/tree.h"

namespace lockstep::fsdp {

at::Tensor part_of(const at::Tensor& parameter) {
  if (const auto group = group_of(parameter))
    for (const auto& each : group->parameters())
      if (each.lock_whole().is_same(parameter)) return each.shard;
  return parameter;
}

ModuleGroups::ModuleGroups(const torch::nn::Module& module) {
  for (const auto& parameter : module.parameters()) {
    const auto group = group_of(parameter);
    if (group != nullptr && std::ranges::find(groups_, group) == groups_.end()) groups_.push_back(group);
  }
}

void ModuleGroups::unshard() const {
  for (const auto& group : groups_) {
    const std::lock_guard lock(group->tree()->mutex);
    group->tree()->make_current(*group);
  }
}

void ModuleGroups::reshard() const {
  for (const auto& group : groups_)
    if (!group->is_shared()) group->reshard();
}

void ModuleGroups::drop_zeroed_gradients() const {
  for (const auto& group : groups_) {
    const std::lock_guard lock(group->tree()->mutex);
    group->drop_zeroed_gradients();
  }
}

void ModuleGroups::note_gradients() const {
  for (const auto& group : groups_) {
    const std::lock_guard lock(group->tree()->mutex);
    group->note_gradients();
  }
}

void ModuleGroups::accumulate() const {
  for (const auto& group : groups_) {
    group->requires_gradient_sync = group->reshard_after_backward = false;
    group->set_gradient_dtypes();
  }
}

void ModuleGroups::reduce(double divisor) const {
  std::vector<std::shared_ptr<Tree>> trees;  // in an order that all ranks have
  for (const auto& group : groups_) {
    group->requires_gradient_sync = group->reshard_after_backward = true;
    group->set_gradient_dtypes();
    if (std::ranges::find(trees, group->tree()) == trees.end()) trees.push_back(group->tree());
  }
  for (const auto& tree : trees) {
    const std::lock_guard lock(tree->mutex);
    tree->end_backward();
  }
  if (divisor == 1) return;
  for (const auto& group : groups_)
    for (const auto& parameter : group->parameters())
      if (parameter.shard.grad().defined()) parameter.shard.mutable_grad().div_(divisor);
}

}  // namespace lockstep::fsdp
