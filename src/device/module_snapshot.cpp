// SPDX-License-Identifier: BSD-3-Clause
#include "device/module_snapshot.h"

#include <algorithm>

#include <fmt/format.h>
#include <torch/nn/modules.h>

#include "device/module_members.h"

namespace lockstep::device {
namespace {

using torch::nn::Module;

// How many modules ahead memory is fetched.
constexpr std::size_t kAhead = 6;
constexpr std::size_t kLine = 64;

void prefetch(const void* begin, std::size_t bytes) {
  for (std::size_t offset = 0; offset < bytes; offset += kLine)
    __builtin_prefetch(static_cast<const char*>(begin) + offset);
}

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

// Calls visit(name, member, registered) for the layers' members that are registered.
template <typename Visit>
void visit_members(const Module& module, bool with_buffers, const std::string& prefix, const Visit& visit) {
  const auto& parameters = own_parameters(module);
  const auto& buffers = own_buffers(module);
  if (!parameters.is_empty() || (with_buffers && !buffers.is_empty())) {
    for (const auto& member : members_of(module)) {
      if (member.is_buffer && !with_buffers) continue;
      const auto* const registered = (member.is_buffer ? buffers : parameters).find(member.name);
      if (registered != nullptr && registered->defined()) visit(prefix + member.name, member, *registered);
    }
  }
  for (const auto& child : own_children(module))
    if (child.value()) visit_members(*child.value(), with_buffers, prefix + child.key() + ".", visit);
}

}  // namespace

ModuleSnapshot::ModuleSnapshot(const Module& module, Content content) : content_(content) {
  add(module);
  for (const auto& each : module.named_parameters())
    parameters_.push_back({each.key(), WeakTensor(each.value().getIntrusivePtr())});
  if (has_buffers())
    for (const auto& each : module.buffers()) buffers_.emplace_back(each.getIntrusivePtr());
  visit_members(module, has_buffers(), "",
                [&](const std::string& name, const LayerMember& member, const at::Tensor& registered) {
                  if (member.place.has(registered.unsafeGetTensorImpl()))
                    members_.push_back({name, member.place, registered.unsafeGetTensorImpl()});
                });
}

template <typename Dict>
ModuleSnapshot::List ModuleSnapshot::listed(const Dict& dict) {
  const List list{dict.items().data(), dict.size(), objects_.size()};
  for (const auto& each : dict) objects_.push_back(object_of(each.value()));
  return list;
}

void ModuleSnapshot::add(const Module& module) {
  const bool with_buffers = has_buffers();
  const auto parameters = listed(own_parameters(module));
  const auto buffers = with_buffers ? listed(own_buffers(module)) : List{};
  modules_.push_back({&module, parameters, buffers, listed(own_children(module))});
  for (const auto& child : own_children(module))
    if (child.value()) add(*child.value());
}

template <typename Dict>
bool ModuleSnapshot::matches(const List& list, const Dict& dict) const {
  if (dict.items().size() != list.size) return false;
  auto known = objects_.begin() + static_cast<std::ptrdiff_t>(list.first);
  return std::ranges::all_of(dict.items(),
                             [&](const auto& each) { return object_of(each.value()) == *known++; });
}

bool ModuleSnapshot::matches(const Module& module) const {
  if (modules_.front().module != &module) return false;
  const bool with_buffers = has_buffers();
  for (std::size_t i = 0; i < modules_.size(); ++i) {
    if (i + kAhead < modules_.size()) {
      const auto& later = modules_[i + kAhead];
      prefetch(later.module, sizeof(Module));
      for (const auto& list : {later.parameters, later.buffers, later.children})
        prefetch(list.entries, list.size * sizeof(torch::OrderedDict<std::string, at::Tensor>::Item));
    }
    const auto& seen = modules_[i];
    const bool same = matches(seen.parameters, own_parameters(*seen.module)) &&
                      (!with_buffers || matches(seen.buffers, own_buffers(*seen.module))) &&
                      matches(seen.children, own_children(*seen.module));
    if (!same) return false;
  }
  // The layers live: their modules match.
  return std::ranges::all_of(members_, [](const Member& each) { return each.place.has(each.expected); });
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
        const bool was_registered = std::ranges::find(members_, name, &Member::name) != members_.end();
        if (!replaced.empty() || !was_registered || member.place.has(registered.unsafeGetTensorImpl()))
          return;
        if (!member.is_buffer && !registered.requires_grad() && !is_trained_leaf(member.place)) return;
        replaced = fmt::format(
            "{0} {1} has been replaced by another tensor in the layer, but not in the module's {0}s()",
            member.is_buffer ? "buffer" : "parameter", name);
      });
  return replaced;
}

}  // namespace lockstep::device
