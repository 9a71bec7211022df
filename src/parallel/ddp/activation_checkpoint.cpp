// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <unordered_set>

#include <ATen/Context.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/core/Generator.h>
#include <c10/core/GradMode.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <lockstep/base/error.h>
#include <lockstep/ddp/activation_checkpoint.h>
#include <lockstep/runtime/default_group.h>

#include "ddp/autograd_hooks.h"
#include "device/generators.h"
#include "device/libtorch_versions.h"
#include "intercept/nested_backward.h"

namespace lockstep::ddp {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

using RandomState = std::vector<std::pair<at::Generator, Tensor>>;

// The default generators' states, of the CPU and of the devices that the tensors are on.
RandomState random_state(const Tensors& tensors) {
  RandomState states{{default_generator(), Tensor()}};
  std::unordered_set<c10::Device> seen;
  for (const auto& tensor : tensors) {
    if (tensor.is_cpu() || !seen.insert(tensor.device()).second) continue;
    states.emplace_back(at::globalContext().defaultGenerator(tensor.device()), Tensor());
  }
  for (auto& [generator, state] : states) state = device::state_of(generator);
  return states;
}

void restore(const RandomState& states) {
  for (const auto& [generator, state] : states) device::set_state(generator, state);
}

Tensors leaves_like(const Tensors& inputs, const std::vector<bool>& require_grad) {
  Tensors leaves;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    leaves.push_back(inputs[i].detach());
    if (require_grad[i]) leaves.back().requires_grad_();
  }
  return leaves;
}

std::vector<bool> requirements(const Tensors& tensors) {
  std::vector<bool> require_grad;
  for (const auto& tensor : tensors) require_grad.push_back(tensor.requires_grad());
  return require_grad;
}

// The leaves that gradients of the outputs reach, without those given.
Tensors other_leaves(const Tensors& outputs, const Tensors& given) {
  std::unordered_set<const void*> known;
  for (const auto& tensor : given) known.insert(tensor.unsafeGetTensorImpl());
  Tensors leaves;
  visit_graph(outputs, [&](torch::autograd::Node* node) {
    const auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node);
    if (leaf != nullptr && known.insert(leaf->variable.unsafeGetTensorImpl()).second) {
      leaves.push_back(leaf->variable);
    }
  });
  return leaves;
}

// Stands in the graph for the function that will be called again.
class Recomputation : public torch::autograd::Node {
 public:
  Recomputation(Recomputed function, const Tensors& inputs, const ActivationCheckpointOptions& options)
      : function_(std::move(function)),
        reentrant_(options.use_reentrant),
        require_grad_(requirements(inputs)) {
    for (const auto& input : inputs) {
      inputs_.push_back(input.detach());
      versions_.push_back(input.is_inference() ? 0 : input._version());
    }
    if (options.preserve_rng_state) random_ = random_state(inputs);
  }

  // The first run. What it returns has no history yet.
  Tensors run() {
    const c10::AutoGradMode mode(!reentrant_);
    const auto inputs = leaves_like(inputs_, require_grad_);
    auto outputs = function_(inputs, true);
    if (!reentrant_) leaves_ = other_leaves(outputs, inputs);
    for (auto& output : outputs) {
      output_requires_.push_back(reentrant_ ? torch::autograd::isDifferentiableType(output.scalar_type())
                                            : output.requires_grad());
      output = output.detach();
    }
    return outputs;
  }

  bool any_output_requires_grad() const {
    return std::ranges::any_of(output_requires_, [](bool requires_it) { return requires_it; });
  }
  bool output_requires_grad(std::size_t i) const { return output_requires_[i]; }
  const Tensors& leaves() const { return leaves_; }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    check_supported();
    check_inputs();
    const at::ThreadLocalStateGuard as_then(state_);
    const c10::AutoGradMode enable(true);
    const auto inputs = leaves_like(inputs_, require_grad_);
    const auto now = random_.empty() ? RandomState() : random_state(inputs_);
    const auto restore_now = c10::make_scope_exit([&now] { restore(now); });
    restore(random_);
    const auto outputs = function_(inputs, false);
    Tensors ends;
    Tensors end_gradients;
    std::size_t next = 0;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!output_requires_[i]) continue;
      const auto& gradient = gradients[next++];
      if (!gradient.defined() || !outputs[i].requires_grad()) continue;
      ends.push_back(outputs[i]);
      end_gradients.push_back(gradient);
    }
    return reentrant_ ? run_backward(inputs, ends, end_gradients)
                      : find_gradients(inputs, ends, end_gradients);
  }

 private:
  void check_supported() const {
    if (reentrant_ && !torch::autograd::Engine::get_default_engine().is_checkpoint_valid()) {
      throw Error(
          "checkpoint: with use_reentrant, only backward() computes gradients, not grad() or backward() with "
          "inputs given; leave use_reentrant false");
    }
    if (c10::GradMode::is_enabled()) {
      throw Error(
          "checkpoint: backward with create_graph is not supported, since second derivatives would be lost");
    }
  }

  void check_inputs() const {
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      if (inputs_[i].is_inference() || inputs_[i]._version() == versions_[i]) continue;
      throw Error(
          "checkpoint: an input was changed in place between forward and backward, so the function cannot be "
          "called again; clone it first");
    }
  }

  static torch::autograd::variable_list run_backward(const Tensors& inputs, const Tensors& ends,
                                                     const Tensors& gradients) {
    const intercept::NestedBackward nested;
    if (!ends.empty()) torch::autograd::backward(ends, gradients);
    torch::autograd::variable_list result;
    for (const auto& input : inputs) result.push_back(input.grad());
    return result;
  }

  torch::autograd::variable_list find_gradients(const Tensors& inputs, const Tensors& ends,
                                                const Tensors& gradients) const {
    Tensors targets;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (require_grad_[i]) targets.push_back(inputs[i]);
    }
    targets.insert(targets.end(), leaves_.begin(), leaves_.end());
    auto found = ends.empty() ? Tensors(targets.size())
                              : torch::autograd::grad(ends, targets, gradients, false, false, true);
    torch::autograd::variable_list result(inputs.size());
    std::size_t next = 0;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (require_grad_[i]) result[i] = found[next++];
    }
    result.insert(result.end(), found.begin() + static_cast<std::ptrdiff_t>(next), found.end());
    return result;
  }

  Recomputed function_;
  bool reentrant_;
  std::vector<bool> require_grad_;
  Tensors inputs_;
  std::vector<std::int64_t> versions_;
  RandomState random_;          // before the first run; empty if it is not preserved
  at::ThreadLocalState state_;  // autocast and the like
  Tensors leaves_;
  std::vector<bool> output_requires_;
};

}  // namespace

std::vector<at::Tensor> checkpoint_tensors(Recomputed function, const std::vector<at::Tensor>& inputs,
                                           const ActivationCheckpointOptions& options) {
  if (!c10::GradMode::is_enabled()) return function(inputs, true);
  const bool any = std::ranges::any_of(inputs, [](const Tensor& input) { return input.requires_grad(); });
  if (options.use_reentrant && !any) {
    throw ArgumentError(
        "checkpoint: with use_reentrant at least one input must require a gradient, or none would reach the "
        "function's parameters; leave use_reentrant false");
  }
  auto node = libtorch::make_node<Recomputation>(std::move(function), inputs, options);
  auto outputs = node->run();
  if (!node->any_output_requires_grad()) return outputs;
  auto edges = torch::autograd::collect_next_edges(inputs);
  for (const auto& leaf : node->leaves()) edges.push_back(torch::autograd::impl::gradient_edge(leaf));
  node->set_next_edges(std::move(edges));
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (node->output_requires_grad(i)) torch::autograd::set_history(outputs[i], node);
  }
  return outputs;
}

}  // namespace lockstep::ddp
