// SPDX-License-Identifier: BSD-3-Clause
#include "device/module_snapshot.h"

#include <algorithm>

#include <fmt/format.h>
#include <torch/nn/modules.h>

#include "device/module_members.h"

namespace lockstep::device {
namespace {

using torch::nn::Module;

// Calls visit(object) for each module and tensor until it returns false. Returns whether it never did.
template <typename Visit>
bool walk(const Module& module, bool with_buffers, const Visit& visit) {
  if (!visit(static_cast<const void*>(&module))) return false;
  for (const auto& each : own_parameters(module))
    if (!visit(static_cast<const void*>(each.value().unsafeGetTensorImpl()))) return false;
  if (with_buffers) {
    for (const auto& each : own_buffers(module))
      if (!visit(static_cast<const void*>(each.value().unsafeGetTensorImpl()))) return false;
  }
  for (const auto& child : own_children(module))
    if (child.value() && !walk(*child.value(), with_buffers, visit)) return false;
  return true;
}

struct LayerMembers {
  const at::Tensor* weight = nullptr;
  const at::Tensor* bias = nullptr;
};

template <typename Layer>
bool find_members(const Module& module, LayerMembers& found) {
  const auto* const layer = dynamic_cast<const Layer*>(&module);
  if (layer == nullptr) return false;
  found.weight = &layer->weight;
  if constexpr (requires { layer->bias; }) found.bias = &layer->bias;
  return true;
}

template <typename... Layers>
LayerMembers members_among(const Module& module) {
  LayerMembers found;
  (void)(find_members<Layers>(module, found) || ...);
  return found;
}

LayerMembers members_of(const Module& module) {
  using namespace torch::nn;
  return members_among<LinearImpl, Conv1dImpl, Conv2dImpl, Conv3dImpl, BatchNorm1dImpl, BatchNorm2dImpl,
                       BatchNorm3dImpl, LayerNormImpl, EmbeddingImpl, GroupNormImpl, ConvTranspose1dImpl,
                       ConvTranspose2dImpl, ConvTranspose3dImpl, InstanceNorm1dImpl, InstanceNorm2dImpl,
                       InstanceNorm3dImpl, EmbeddingBagImpl, BilinearImpl, PReLUImpl>(module);
}

// Calls visit(name, member, registered) for the layers' members that are registered.
template <typename Visit>
void visit_members(const Module& module, const std::string& prefix, const Visit& visit) {
  const auto& own = own_parameters(module);
  if (!own.is_empty()) {
    const auto members = members_of(module);
    const auto visit_one = [&](const char* name, const at::Tensor* member) {
      const auto* const registered = member == nullptr ? nullptr : own.find(name);
      if (registered != nullptr && registered->defined()) visit(prefix + name, *member, *registered);
    };
    visit_one("weight", members.weight);
    visit_one("bias", members.bias);
  }
  for (const auto& child : own_children(module))
    if (child.value()) visit_members(*child.value(), prefix + child.key() + ".", visit);
}

}  // namespace

ModuleSnapshot::ModuleSnapshot(const Module& module, Content content) : content_(content) {
  walk(module, content_ == Content::parameters_and_buffers, [&](const void* object) {
    objects_.push_back(object);
    return true;
  });
  for (const auto& each : module.named_parameters())
    parameters_.push_back({each.key(), WeakTensor(each.value().getIntrusivePtr())});
  if (content_ == Content::parameters_and_buffers)
    for (const auto& each : module.buffers()) buffers_.emplace_back(each.getIntrusivePtr());
  visit_members(module, "", [&](const std::string& name, const auto& member, const auto& registered) {
    if (member.is_same(registered)) members_.push_back({name, &member, member.unsafeGetTensorImpl()});
  });
}

bool ModuleSnapshot::matches(const Module& module) const {
  auto known = objects_.begin();
  const bool has_same = walk(module, content_ == Content::parameters_and_buffers, [&](const void* object) {
    return known != objects_.end() && *known++ == object;
  });
  // The layers live: their modules match.
  return has_same && known == objects_.end() && std::ranges::all_of(members_, [](const Member& each) {
           return each.tensor->unsafeGetTensorImpl() == each.expected;
         });
}

std::string ModuleSnapshot::difference(const Module& module) const {
  const auto now = module.named_parameters();
  for (const auto& [name, tensor] : parameters_) {
    const auto* const found = now.find(name);
    if (found == nullptr) return fmt::format("parameter {} has been removed", name);
    if (found->unsafeGetTensorImpl() != tensor._unsafe_get_target())
      return fmt::format("parameter {} has been replaced by another tensor", name);
  }
  for (const auto& each : now) {
    if (std::ranges::find(parameters_, each.key(), &Named::name) == parameters_.end())
      return fmt::format("parameter {} has been added", each.key());
  }
  std::string replaced;
  visit_members(module, "", [&](const std::string& name, const auto& member, const auto& registered) {
    const bool was_registered = std::ranges::find(members_, name, &Member::name) != members_.end();
    if (!replaced.empty() || !was_registered || member.is_same(registered)) return;
    replaced = fmt::format(
        "parameter {} has been replaced by another tensor in the layer, but not in the module's parameters()",
        name);
  });
  return replaced;
}

}  // namespace lockstep::device
