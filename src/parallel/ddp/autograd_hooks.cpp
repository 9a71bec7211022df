// SPDX-License-Identifier: BSD-3-Clause
#include "ddp/autograd_hooks.h"

#include <algorithm>

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>

#include "device/libtorch_versions.h"

namespace lockstep::ddp {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

class ReadyHook final : public torch::autograd::FunctionPostHook {
 public:
  ReadyHook(const std::function<void(std::size_t)>& on_ready, std::size_t parameter,
            const std::function<Claim()>& claim)
      : on_ready_(on_ready), parameter_(parameter), claim_(claim) {}

  variable_list operator()(const variable_list& outputs, const variable_list& /*inputs*/) override {
    on_ready_(parameter_);
    return outputs;
  }
  const std::function<Claim()>& claim() const { return claim_; }

 private:
  const std::function<void(std::size_t)>& on_ready_;
  std::size_t parameter_;
  const std::function<Claim()>& claim_;
};

bool is_ready_hook(const std::unique_ptr<torch::autograd::FunctionPostHook>& hook) {
  return dynamic_cast<const ReadyHook*>(hook.get()) != nullptr;
}

// With several DistributedDataParallel of one tensor, each listens.
class TensorHook final : public torch::autograd::PostAccumulateGradHook {
 public:
  using Listener = std::function<void()>;

  void operator()(const at::Tensor& tensor) override {
    if (has_ready_hook(tensor)) return;
    for (const auto& [owner, listener] : listeners_) listener();
  }
  void add(const void* owner, Listener listener) { listeners_.emplace_back(owner, std::move(listener)); }
  void remove(const void* owner) {
    std::erase_if(listeners_, [&](const auto& each) { return each.first == owner; });
  }
  bool is_idle() const { return listeners_.empty(); }

 private:
  static bool has_ready_hook(const at::Tensor& tensor) {
    auto* const node = static_cast<Node*>(const_cast<void*>(libtorch::accumulator_of(tensor)));
    return node != nullptr && std::ranges::any_of(node->post_hooks(), is_ready_hook);
  }

  std::vector<std::pair<const void*, Listener>> listeners_;
};

// nullptr: there is none, or one of somebody else.
TensorHook* hook_of(const at::Tensor& tensor) {
  return dynamic_cast<TensorHook*>(torch::autograd::impl::post_acc_grad_hooks(tensor).get());
}

bool has_no_hook(const at::Tensor& tensor) {
  return torch::autograd::impl::get_autograd_meta(tensor) == nullptr ||
         torch::autograd::impl::post_acc_grad_hooks(tensor) == nullptr;
}

class Sink : public Node {
 public:
  explicit Sink(std::function<void()> on_backward) : on_backward_(std::move(on_backward)) {}

  variable_list apply(variable_list&& gradients) override {
    if (on_backward_) on_backward_();
    return std::move(gradients);
  }

 private:
  std::function<void()> on_backward_;
};

}  // namespace

GradientHooks::GradientHooks(const std::vector<TrainedParameter>& parameters,
                             std::function<void(std::size_t)> on_ready, std::function<Claim()> claim)
    : on_ready_(std::move(on_ready)), claim_(std::move(claim)) {
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    auto accumulator = torch::autograd::impl::grad_accumulator(parameters[index].tensor);
    if (!accumulator) {  // a frozen parameter
      hooks_.emplace_back();
      continue;
    }
    const auto key = accumulator->add_post_hook(std::make_unique<ReadyHook>(on_ready_, index, claim_));
    hooks_.emplace_back(std::move(accumulator), key);
  }
}

GradientHooks::~GradientHooks() {
  for (auto& [accumulator, key] : hooks_)
    if (accumulator) accumulator->del_post_hook(key);
}

Claim GradientHooks::claim_of_others(std::size_t i) const {
  auto claim = Claim::none;
  for (const auto& each : hooks_[i].first->post_hooks()) {
    const auto* const hook = dynamic_cast<const ReadyHook*>(each.get());
    if (hook != nullptr && &hook->claim() != &claim_) claim = std::max(claim, hook->claim()());
  }
  return claim;
}

UnhookedGradients::UnhookedGradients(const std::vector<modules::NamedTensor>& tensors,
                                     std::function<void(std::size_t)> on_gradient)
    : on_gradient_(std::move(on_gradient)) {
  for (const auto& [name, tensor] : tensors) {
    if (has_no_hook(tensor))
      torch::autograd::impl::set_post_acc_grad_hooks(tensor, std::make_unique<TensorHook>());
    if (auto* const hook = hook_of(tensor)) hook->add(this, [this, i = tensors_.size()] { on_gradient_(i); });
    tensors_.push_back(tensor);
  }
}

UnhookedGradients::~UnhookedGradients() {
  for (const auto& tensor : tensors_) {
    auto* const hook = hook_of(tensor);
    if (hook == nullptr) continue;
    hook->remove(this);
    if (hook->is_idle()) torch::autograd::impl::post_acc_grad_hooks(tensor).reset();
  }
}

std::unordered_set<const Node*> visit_graph(const std::vector<at::Tensor>& outputs,
                                            const std::function<void(Node*)>& visit) {
  std::unordered_set<const Node*> seen;
  std::vector<Node*> to_visit;
  const auto add = [&](Node* node) {
    if (node != nullptr && seen.insert(node).second) to_visit.push_back(node);
  };
  for (const auto& output : outputs) {
    if (output.requires_grad()) add(torch::autograd::impl::gradient_edge(output).function.get());
  }
  while (!to_visit.empty()) {
    Node* const node = to_visit.back();
    to_visit.pop_back();
    visit(node);
    for (const auto& edge : node->next_edges()) add(edge.function.get());
  }
  return seen;
}

std::vector<std::size_t> find_unreachable(const std::vector<at::Tensor>& outputs,
                                          const GradientHooks& hooks) {
  const auto reached = visit_graph(outputs, [](Node*) {});
  std::vector<std::size_t> unreachable;
  for (std::size_t i = 0; i < hooks.size(); ++i) {
    if (!reached.contains(hooks.node(i))) unreachable.push_back(i);
  }
  return unreachable;
}

void pass_through_sink(std::vector<at::Tensor>& tensors, std::function<void()> on_backward) {
  std::vector<at::Tensor> with_history;
  for (const auto& tensor : tensors) {
    if (tensor.grad_fn()) with_history.push_back(tensor);
  }
  if (with_history.empty()) return;
  auto sink = libtorch::make_node<Sink>(std::move(on_backward));
  sink->set_next_edges(torch::autograd::collect_next_edges(with_history));
  for (auto& tensor : tensors) {
    if (!tensor.grad_fn()) continue;
    auto copy = tensor.detach().clone();
    torch::autograd::set_history(copy, sink);
    tensor = std::move(copy);
  }
}

}  // namespace lockstep::ddp
