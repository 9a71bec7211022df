// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_set>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include "ddp/bucket.h"

// The places where DistributedDataParallel meets autograd's graph.
namespace lockstep::ddp {

// What becomes of gradients that become ready now: nobody knows of them, no_sync() has them accumulate, or
// they will be reduced.
enum class Claim : std::uint8_t { none, local, reduced };

// Calls `on_ready(i)` from inside backward, on the computing thread, after the gradient of parameter i has
// been added to its .grad. Removes its hooks when destroyed.
class GradientHooks {
 public:
  // `claim`: the caller's, for other objects that have hooks on the same parameters.
  GradientHooks(const std::vector<TrainedParameter>& parameters, std::function<void(std::size_t)> on_ready,
                std::function<Claim()> claim);
  ~GradientHooks();
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

  std::size_t size() const { return hooks_.size(); }
  // The graph's node that accumulates the gradient of parameter i.
  // nullptr if the parameter was frozen when the hooks were made.
  torch::autograd::Node* node(std::size_t i) const { return hooks_[i].first.get(); }
  // The strongest claim of other objects that have a hook on this parameter.
  Claim claim_of_others(std::size_t i) const;

 private:
  // A shared_ptr or an intrusive_ptr, by LibTorch's version.
  using Accumulator = decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

  std::function<void(std::size_t)> on_ready_;
  std::function<Claim()> claim_;
  // Tensors hold their accumulators weakly; these keep the hooks alive.
  std::vector<std::pair<Accumulator, std::uintptr_t>> hooks_;
};

// Calls `on_gradient(i)` from inside backward after a gradient has been added to the .grad of tensor i by a
// node without a hook of GradientHooks. A conversion drops a tensor's node, and what was frozen had none;
// this hook stays with the tensor. Not called for tensors that somebody else has given a hook of this kind.
class UnhookedGradients {
 public:
  UnhookedGradients(const std::vector<modules::NamedTensor>& tensors,
                    std::function<void(std::size_t)> on_gradient);
  ~UnhookedGradients();
  UnhookedGradients(const UnhookedGradients&) = delete;
  UnhookedGradients& operator=(const UnhookedGradients&) = delete;

 private:
  std::function<void(std::size_t)> on_gradient_;
  std::vector<at::Tensor> tensors_;
};

// Calls `visit` once for each node of the graph behind `outputs`, and returns these nodes.
std::unordered_set<const torch::autograd::Node*> visit_graph(
    const std::vector<at::Tensor>& outputs, const std::function<void(torch::autograd::Node*)>& visit);

// The parameters, ascending, whose gradients no backward from these outputs can reach.
std::vector<std::size_t> find_unreachable(const std::vector<at::Tensor>& outputs, const GradientHooks& hooks);

// Replaces the tensors that have a history by copies behind one common node, so that a backward from any of
// them visits every parameter behind all of them, with an undefined gradient if the loss does not depend on
// it. Backward calls `on_backward` when it passes the node. PyTorch: `_DDPSink`.
void pass_through_sink(std::vector<at::Tensor>& tensors, std::function<void()> on_backward);

}  // namespace lockstep::ddp
