// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

namespace lockstep::nn {

// LibTorch 2.11's graph holds its nodes by shared_ptr, 2.13's by intrusive_ptr.
inline constexpr bool kNodesAreShared =
    std::is_same_v<decltype(torch::autograd::Edge::function), std::shared_ptr<torch::autograd::Node>>;

template <class Node>
using NodePointer = std::conditional_t<kNodesAreShared, std::shared_ptr<Node>, c10::intrusive_ptr<Node>>;

// A node of autograd's graph.
template <class Node, class... Args>
NodePointer<Node> make_node(Args&&... args) {
  if constexpr (kNodesAreShared) {
    // deleteNode() destroys long graphs without recursion; found by argument-dependent lookup where it
    // exists.
    return std::shared_ptr<Node>(new Node(std::forward<Args>(args)...), [](Node* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<Node>(std::forward<Args>(args)...);
  }
}

// The node that accumulates the tensor's gradient, without making one; nullptr if there is none. Its address
// stays unique as long as something holds the node, as hooks do.
inline const void* accumulator_of(const c10::TensorImpl& tensor) {
  const auto* const meta = static_cast<torch::autograd::AutogradMeta*>(tensor.autograd_meta());
  if (meta == nullptr) return nullptr;
  if constexpr (kNodesAreShared) {
    return meta->grad_accumulator_.lock().get();
  } else {
    return meta->grad_accumulator_._unsafe_get_target();
  }
}
inline const void* accumulator_of(const at::Tensor& tensor) {
  return accumulator_of(*tensor.unsafeGetTensorImpl());
}

}  // namespace lockstep::nn
