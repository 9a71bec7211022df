// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

namespace lockstep::device {

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

  // Also false for other submodules. Fetches memory ahead, which a training step has evicted from the caches.
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
    std::string name;
    LayerPlace place;
    const void* expected;
  };

  // One list of a module: where its entries lie, and what they refer to.
  struct List {
    const void* entries;
    std::size_t size;
    std::size_t first;  // in objects_
  };
  // In the order of a walk, so that a module's parent has been compared when the module is looked at.
  struct Seen {
    const torch::nn::Module* module;
    List parameters;
    List buffers;
    List children;
  };
  void add(const torch::nn::Module& module);
  template <typename Dict>
  List listed(const Dict& dict);
  template <typename Dict>
  bool matches(const List& list, const Dict& dict) const;

  Content content_;
  std::vector<Seen> modules_;
  std::vector<const void*> objects_;  // tensors and modules
  std::vector<Named> parameters_;
  std::vector<WeakTensor> buffers_;
  std::vector<Member> members_;
};

}  // namespace lockstep::device
