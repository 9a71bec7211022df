// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "device/cold_lines.h"

namespace lockstep::device {

// What a module has registered itself, without the copies that its own functions return.
const torch::OrderedDict<std::string, at::Tensor>& own_parameters(const torch::nn::Module& module);
const torch::OrderedDict<std::string, at::Tensor>& own_buffers(const torch::nn::Module& module);
const torch::OrderedDict<std::string, std::shared_ptr<torch::nn::Module>>& own_children(
    const torch::nn::Module& module);

// The tensors with which layers of LibTorch compute instead of the parameters that are registered, by name.
std::vector<std::pair<std::string, at::Tensor>> unregistered_parameters(const torch::nn::Module& module);

// Where a layer keeps a tensor. Lives as long as the layer.
class LayerPlace {
 public:
  LayerPlace(const at::Tensor* member) : member_(member) {}  // NOLINT(google-explicit-constructor)
  // In a list that is a member, which to() fills anew.
  LayerPlace(const std::vector<at::Tensor>* list, std::size_t index) : list_(list), index_(index) {}

  // nullptr: the list is shorter now.
  const at::Tensor* tensor() const {
    if (list_ == nullptr) return member_;
    return index_ < list_->size() ? &(*list_)[index_] : nullptr;
  }
  bool has(const void* tensor) const {
    const auto* const now = this->tensor();
    return now != nullptr && now->unsafeGetTensorImpl() == tensor;
  }

 private:
  const at::Tensor* member_ = nullptr;
  const std::vector<at::Tensor>* list_ = nullptr;
  std::size_t index_ = 0;
};

// Which tensors a module had: notices that another one has taken a parameter's place, and what was added or
// removed since. Compares identities only, and keeps no values alive.
class ModuleSnapshot {
 public:
  enum class Content { parameters, parameters_and_buffers };

  explicit ModuleSnapshot(const torch::nn::Module& module, Content content = Content::parameters);

  // Also false for other submodules.
  bool matches(const torch::nn::Module& module) const;
  // What has become of the parameters, for a message: "parameter 0.weight has been replaced by another
  // tensor". Empty: they are the same.
  std::string difference(const torch::nn::Module& module) const;

 private:
  bool has_buffers() const { return content_ == Content::parameters_and_buffers; }
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl>;
  struct Named {
    std::string name;
    WeakTensor tensor;  // so that no other tensor gets the address
  };
  // A layer of LibTorch computes with its member, whatever is registered.
  struct Member {
    LayerPlace place;
    const void* expected;
  };
  // Consecutive entries of objects_ or members_.
  struct Range {
    std::uint32_t first;
    std::uint32_t size;
  };
  // In the order of a walk, so that a module's parent has been compared when the module is looked at.
  struct Seen {
    const torch::nn::Module* module;
    Range parameters;
    Range buffers;
    Range children;
    Range members;
  };
  void add(const torch::nn::Module& module, const std::string& prefix);
  template <typename Dict>
  Range listed(const Dict& dict);
  Range listed_members(const torch::nn::Module& module, const std::string& prefix);
  template <typename Dict>
  bool matches(Range range, const Dict& dict) const;
  bool matches(const Seen& seen) const;

  Content content_;
  std::vector<Seen> modules_;
  std::vector<const void*> objects_;  // tensors and modules
  std::vector<Named> parameters_;
  std::vector<WeakTensor> buffers_;
  std::vector<Member> members_;
  std::vector<std::string> member_names_;
  ColdLines lines_;  // a group for each module
};

}  // namespace lockstep::device
