// SPDX-License-Identifier: BSD-3-Clause
#include "device/module_snapshot.h"

#include <algorithm>
#include <span>

#include <fmt/format.h>
#include <torch/nn/modules.h>

namespace lockstep::device {
namespace {

using torch::nn::Module;
using Tensors = torch::OrderedDict<std::string, at::Tensor>;
using Modules = torch::OrderedDict<std::string, std::shared_ptr<Module>>;

struct ParametersOf : Module {
  static constexpr auto member = &ParametersOf::parameters_;
};

// An explicit instantiation may name private members.
template <typename Key, typename Key::Member member>
struct Reveal {
  friend typename Key::Member member_of(Key) { return member; }
};

struct Buffers {
  using Member = Tensors Module::*;
  friend Member member_of(Buffers);
};
template struct Reveal<Buffers, &Module::buffers_>;

struct Children {
  using Member = Modules Module::*;
  friend Member member_of(Children);
};
template struct Reveal<Children, &Module::children_>;

const void* object_of(const at::Tensor& tensor) { return tensor.unsafeGetTensorImpl(); }
const void* object_of(const std::shared_ptr<Module>& module) { return module.get(); }

struct LayerMember {
  const char* name;
  LayerPlace place;
  bool is_buffer = false;
};
using LayerMembers = std::vector<LayerMember>;

template <typename Layer>
void add_weight_and_bias(const Layer& layer, LayerMembers& members) {
  members.push_back({"weight", &layer.weight});
  if constexpr (requires { layer.bias; }) members.push_back({"bias", &layer.bias});
  if constexpr (requires { layer.running_mean; }) {
    members.push_back({"running_mean", &layer.running_mean, /*is_buffer=*/true});
    members.push_back({"running_var", &layer.running_var, /*is_buffer=*/true});
    members.push_back({"num_batches_tracked", &layer.num_batches_tracked, /*is_buffer=*/true});
  }
}

template <typename Cell>
void add_cell(const Cell& cell, LayerMembers& members) {
  members.push_back({"weight_ih", &cell.weight_ih});
  members.push_back({"weight_hh", &cell.weight_hh});
  members.push_back({"bias_ih", &cell.bias_ih});
  members.push_back({"bias_hh", &cell.bias_hh});
}

void add_attention(const torch::nn::MultiheadAttentionImpl& layer, LayerMembers& members) {
  members.push_back({"in_proj_weight", &layer.in_proj_weight});
  members.push_back({"in_proj_bias", &layer.in_proj_bias});
  members.push_back({"bias_k", &layer.bias_k});
  members.push_back({"bias_v", &layer.bias_v});
  members.push_back({"q_proj_weight", &layer.q_proj_weight});
  members.push_back({"k_proj_weight", &layer.k_proj_weight});
  members.push_back({"v_proj_weight", &layer.v_proj_weight});
}

template <typename Layer>
struct Recurrent : Layer {
  static constexpr auto weights = &Recurrent::flat_weights_;
  static constexpr auto names = &Recurrent::flat_weights_names_;
};

template <typename Layer>
void add_flat_weights(const Layer& layer, LayerMembers& members) {
  const auto& names = layer.*Recurrent<Layer>::names;
  for (std::size_t i = 0; i < names.size(); ++i)
    members.push_back({names[i].c_str(), LayerPlace(&(layer.*Recurrent<Layer>::weights), i)});
}

// Calls add(layer) if the module is one of these layers.
template <typename... Layers, typename Add>
bool add_one_of(const Module& module, const Add& add) {
  const auto add_if = [&](const auto* layer) {
    if (layer != nullptr) add(*layer);
    return layer != nullptr;
  };
  return (add_if(dynamic_cast<const Layers*>(&module)) || ...);
}

// The tensors that a layer of LibTorch computes with, whatever is registered.
LayerMembers members_of(const Module& module) {
  using namespace torch::nn;
  LayerMembers members;
  const auto plain = [&](const auto& layer) { add_weight_and_bias(layer, members); };
  const auto cell = [&](const auto& layer) { add_cell(layer, members); };
  const auto attention = [&](const auto& layer) { add_attention(layer, members); };
  const auto recurrent = [&](const auto& layer) { add_flat_weights(layer, members); };
  (void)(add_one_of<LinearImpl, Conv1dImpl, Conv2dImpl, Conv3dImpl, BatchNorm1dImpl, BatchNorm2dImpl,
                    BatchNorm3dImpl, LayerNormImpl, EmbeddingImpl, GroupNormImpl, ConvTranspose1dImpl,
                    ConvTranspose2dImpl, ConvTranspose3dImpl, InstanceNorm1dImpl, InstanceNorm2dImpl,
                    InstanceNorm3dImpl, EmbeddingBagImpl, BilinearImpl, PReLUImpl>(module, plain) ||
         add_one_of<RNNCellImpl, LSTMCellImpl, GRUCellImpl>(module, cell) ||
         add_one_of<RNNImpl, LSTMImpl, GRUImpl>(module, recurrent) ||
         add_one_of<MultiheadAttentionImpl>(module, attention));
  return members;
}

// A layer that computes the value of a frozen parameter itself, as weight normalization does, has none in its
// place.
bool is_trained_leaf(const LayerPlace& place) {
  const auto* const tensor = place.tensor();
  return tensor != nullptr && tensor->defined() && tensor->is_leaf() && tensor->requires_grad();
}

// Calls visit(name, member, registered) for the layer's members that are registered.
template <typename Visit>
void visit_own_members(const Module& module, bool with_buffers, const std::string& prefix,
                       const Visit& visit) {
  const auto& parameters = own_parameters(module);
  const auto& buffers = own_buffers(module);
  if (parameters.is_empty() && (!with_buffers || buffers.is_empty())) return;
  for (const auto& member : members_of(module)) {
    if (member.is_buffer && !with_buffers) continue;
    const auto* const registered = (member.is_buffer ? buffers : parameters).find(member.name);
    if (registered != nullptr && registered->defined()) visit(prefix + member.name, member, *registered);
  }
}

// The same for all layers below.
template <typename Visit>
void visit_members(const Module& module, bool with_buffers, const std::string& prefix, const Visit& visit) {
  visit_own_members(module, with_buffers, prefix, visit);
  for (const auto& child : own_children(module))
    if (child.value()) visit_members(*child.value(), with_buffers, prefix + child.key() + ".", visit);
}

}  // namespace

const Tensors& own_parameters(const Module& module) { return module.*ParametersOf::member; }
const Tensors& own_buffers(const Module& module) { return module.*member_of(Buffers()); }
const Modules& own_children(const Module& module) { return module.*member_of(Children()); }

ModuleSnapshot::ModuleSnapshot(const Module& module, Content content) : content_(content) {
  add(module, "");
  for (const auto& each : module.named_parameters())
    parameters_.push_back({each.key(), WeakTensor(each.value().getIntrusivePtr())});
  if (has_buffers())
    for (const auto& each : module.buffers()) buffers_.emplace_back(each.getIntrusivePtr());
}

template <typename Dict>
ModuleSnapshot::Range ModuleSnapshot::listed(const Dict& dict) {
  const auto first = static_cast<std::uint32_t>(objects_.size());
  lines_.add(&dict.items(), 2 * sizeof(void*));  // begin and end
  for (const auto& each : dict) {
    lines_.add(&each.value(), sizeof(void*));
    objects_.push_back(object_of(each.value()));
  }
  return {first, static_cast<std::uint32_t>(dict.size())};
}

ModuleSnapshot::Range ModuleSnapshot::listed_members(const Module& module, const std::string& prefix) {
  const auto first = static_cast<std::uint32_t>(members_.size());
  visit_own_members(module, has_buffers(), prefix,
                    [&](const std::string& name, const LayerMember& member, const at::Tensor& registered) {
                      if (!member.place.has(registered.unsafeGetTensorImpl())) return;
                      lines_.add(member.place.tensor(), sizeof(at::Tensor));
                      members_.push_back({member.place, registered.unsafeGetTensorImpl()});
                      member_names_.push_back(name);
                    });
  return {first, static_cast<std::uint32_t>(members_.size()) - first};
}

void ModuleSnapshot::add(const Module& module, const std::string& prefix) {
  const auto parameters = listed(own_parameters(module));
  const auto buffers = has_buffers() ? listed(own_buffers(module)) : Range{};
  const auto children = listed(own_children(module));
  modules_.push_back({&module, parameters, buffers, children, listed_members(module, prefix)});
  lines_.end_group();
  for (const auto& child : own_children(module))
    if (child.value()) add(*child.value(), prefix + child.key() + ".");
}

template <typename Dict>
bool ModuleSnapshot::matches(Range range, const Dict& dict) const {
  if (dict.items().size() != range.size) return false;
  const auto* known = objects_.data() + range.first;
  return std::ranges::all_of(dict.items(),
                             [&](const auto& each) { return object_of(each.value()) == *known++; });
}

bool ModuleSnapshot::matches(const Seen& seen) const {
  const auto& module = *seen.module;
  return matches(seen.parameters, own_parameters(module)) &&
         (!has_buffers() || matches(seen.buffers, own_buffers(module))) &&
         matches(seen.children, own_children(module)) &&
         std::ranges::all_of(std::span(members_).subspan(seen.members.first, seen.members.size),
                             [](const Member& each) { return each.place.has(each.expected); });
}

bool ModuleSnapshot::matches(const Module& module) const {
  if (modules_.front().module != &module) return false;
  ColdLines::Walk walk(lines_);
  for (std::size_t i = 0; i < modules_.size(); ++i) {
    walk.enter(i);
    if (!matches(modules_[i])) return false;
  }
  return true;
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
  visit_members(
      module, has_buffers(), "",
      [&](const std::string& name, const LayerMember& member, const at::Tensor& registered) {
        const bool was_registered = std::ranges::find(member_names_, name) != member_names_.end();
        if (!replaced.empty() || !was_registered || member.place.has(registered.unsafeGetTensorImpl()))
          return;
        if (!member.is_buffer && !registered.requires_grad() && !is_trained_leaf(member.place)) return;
        replaced = fmt::format(
            "{0} {1} has been replaced by another tensor in the layer, but not in the module's {0}s()",
            member.is_buffer ? "buffer" : "parameter", name);
      });
  return replaced;
}

std::vector<std::pair<std::string, at::Tensor>> unregistered_parameters(const torch::nn::Module& module) {
  std::vector<std::pair<std::string, at::Tensor>> all;
  visit_members(module, /*with_buffers=*/false, "",
                [&](const std::string& name, const LayerMember& member, const at::Tensor& registered) {
                  if (!member.place.has(registered.unsafeGetTensorImpl()) && is_trained_leaf(member.place))
                    all.emplace_back(name, *member.place.tensor());
                });
  return all;
}

}  // namespace lockstep::device
