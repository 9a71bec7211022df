// SPDX-License-Identifier: BSD-3-Clause
// All differences between the releases of LibTorch that Lockstep builds with; docs/libtorch-versions.md lists
// them.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include <c10/core/StorageImpl.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/headeronly/version.h>

#include "base/env.h"

namespace lockstep::libtorch {

// Whether this build's LibTorch is that release or a later one.
constexpr bool is_at_least(int major, int minor) {
  return TORCH_VERSION_MAJOR > major || (TORCH_VERSION_MAJOR == major && TORCH_VERSION_MINOR >= minor);
}

// 2.15 stores the strides of a tensor in the metadata of a distributed checkpoint. Earlier releases cannot
// read metadata with strides.
inline constexpr bool kCheckpointsHaveStrides = is_at_least(2, 15);

// torch.nn.init.trunc_normal_() draws again what is outside of the limits since 2.12. Earlier releases map
// uniform numbers by the inverse of the distribution.
inline constexpr bool kTruncNormalDrawsAgain = is_at_least(2, 12);

// Whether Python's "nccl" is c10d::nccl2::ProcessGroupNCCL, which ranks of c10d::ProcessGroupNCCL cannot
// meet: from 2.15 on, unless the variable says otherwise; in 2.14 if it asks for it.
inline bool python_uses_nccl2(const Env& env) {
  const auto chosen = env.get("TORCH_DIST_USE_NCCL2").value_or("");
  if constexpr (is_at_least(2, 15)) return chosen != "0";
  return is_at_least(2, 14) && chosen == "1";
}

// Allows access to the data of a storage again after release_data_and_set_meta_custom_data_ptr_error_msg_().
void allow_access(c10::StorageImpl& storage);

// c10d::Work with the virtual functions of later releases.
class Work : public c10d::Work {
 public:
  using c10d::Work::Work;
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 14
  virtual std::chrono::milliseconds getTimeout() const = 0;
#endif
};

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 14
struct ReconfigureOptions {
  std::int64_t uuid = 0;
  std::variant<std::unordered_set<std::string>, std::vector<std::string>> handles;
  std::optional<std::chrono::milliseconds> timeout = std::nullopt;
};
#else
using c10d::ReconfigureOptions;
#endif

// c10d::Backend with the virtual functions of later releases.
class Backend : public c10d::Backend {
 public:
  using c10d::Backend::Backend;
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 14
  // Before 2.14 rank and size of a c10d::Backend are constants.
  static constexpr bool kMembersCanChange = false;
  virtual bool supportsReconfigure() const { return false; }
  virtual std::string get_reconfigure_handle() const = 0;
  virtual c10::intrusive_ptr<c10d::Work> reconfigure(const ReconfigureOptions& options) = 0;

 protected:
  void set_members(int /*rank*/, int /*size*/) {}
#else
  static constexpr bool kMembersCanChange = true;

 protected:
  void set_members(int rank, int size) {
    rank_ = rank;
    size_ = size;
  }
#endif

 public:
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 15
  virtual bool isInitialized() { return true; }
#endif
};

// 2.11's graph holds its nodes by shared_ptr, 2.13's by intrusive_ptr.
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
  const auto* const meta = static_cast<const torch::autograd::AutogradMeta*>(tensor.autograd_meta());
  if (meta == nullptr) return nullptr;
  return [](const auto& accumulator) -> const void* {
    if constexpr (kNodesAreShared) {
      return accumulator.lock().get();
    } else {
      return accumulator._unsafe_get_target();
    }
  }(meta->grad_accumulator_);
}
inline const void* accumulator_of(const at::Tensor& tensor) {
  return accumulator_of(*tensor.unsafeGetTensorImpl());
}

// A kind of thread-local information of our own with this address. Before 2.13 kinds are an enum with unused
// values.
template <typename Kind = c10::DebugInfoKind, typename Name>
constexpr Kind debug_info_kind(const Name* name) {
  if constexpr (std::is_enum_v<Kind>) {
    return static_cast<Kind>(213);
  } else {
    return Kind(name);
  }
}

// Makes a capture record the draws of the generator. From 2.14 on the first draw in a capture does it.
template <typename Graph, typename Generator>
void register_generator(Graph& graph, const Generator& generator) {
  if constexpr (requires { graph.register_generator_state(generator); }) {
    graph.register_generator_state(generator);
  }
}

// Lets a generator draw again after a failed capture. From 2.13 on it always can.
template <typename GeneratorState>
void leave_capture(GeneratorState& state) {
  if constexpr (requires { state.capturing_; }) state.capturing_ = false;
}

// Ends the use of the memory pool by a failed capture. Before 2.14 the graph keeps no record of it.
template <typename Graph>
void leave_pool(Graph& graph) {
  if constexpr (is_at_least(2, 14)) graph.reset();
}

}  // namespace lockstep::libtorch
