// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include "ddp/trained_parameters.h"

namespace lockstep::ddp {

// Calls `on_ready(i)` from inside backward, on the thread that computes, when the gradient of parameter i has
// been added to its .grad. Removes its hooks when destroyed.
class GradientHooks {
 public:
  GradientHooks(const std::vector<TrainedParameter>& parameters, std::function<void(std::size_t)> on_ready);
  ~GradientHooks();
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

  // Where gradients of parameter i arrive in the graph.
  torch::autograd::Node* node(std::size_t i) const { return hooks_[i].first.get(); }

 private:
  // A shared_ptr or an intrusive_ptr, by LibTorch's version.
  using Accumulator = decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

  std::function<void(std::size_t)> on_ready_;
  // Tensors refer to their accumulators weakly; the hooks live as long as these.
  std::vector<std::pair<Accumulator, std::uintptr_t>> hooks_;
};

}  // namespace lockstep::ddp
