// SPDX-License-Identifier: BSD-3-Clause
#include "fsdp/module_groups.h"

#include <algorithm>

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
  for (const auto& group : groups_) group->tree()->make_current(*group);
}

void ModuleGroups::reshard() const {
  for (const auto& group : groups_)
    if (!group->is_shared()) group->tree()->reshard(*group);
}

void ModuleGroups::drop_zeroed_gradients() const {
  Tree::change(groups_, [](ParameterGroup& group) { group.gradients().drop_zeroed(); });
}

void ModuleGroups::note_gradients() const {
  Tree::change(groups_, [](ParameterGroup& group) { group.gradients().note_gradients(); });
}

void ModuleGroups::set_reduces(bool reduces) const {
  Tree::change(groups_, [&](ParameterGroup& group) {
    group.reshard_after_backward = reduces;
    group.gradients().set_requires_sync(reduces);
  });
}

void ModuleGroups::accumulate() const { set_reduces(false); }

void ModuleGroups::reduce(double divisor) const {
  set_reduces(true);
  std::vector<std::shared_ptr<Tree>> trees;  // in an order that all ranks have
  for (const auto& group : groups_)
    if (std::ranges::find(trees, group->tree()) == trees.end()) trees.push_back(group->tree());
  for (const auto& tree : trees) tree->end_backward();
  if (divisor == 1) return;
  Tree::change(groups_, [&](ParameterGroup& group) { group.gradients().divide(divisor); });
}

}  // namespace lockstep::fsdp
