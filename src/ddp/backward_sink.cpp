// SPDX-License-Identifier: BSD-3-Clause
#include "ddp/backward_sink.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include "nn/node_pointer.h"

namespace lockstep::ddp {
namespace {

class Sink : public torch::autograd::Node {
 public:
  explicit Sink(std::function<void()> on_backward) : on_backward_(std::move(on_backward)) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    if (on_backward_) on_backward_();
    return std::move(gradients);
  }

 private:
  std::function<void()> on_backward_;
};

}  // namespace

void pass_through_sink(std::vector<at::Tensor>& tensors, std::function<void()> on_backward) {
  std::vector<at::Tensor> with_history;
  for (const auto& tensor : tensors) {
    if (tensor.grad_fn()) with_history.push_back(tensor);
  }
  if (with_history.empty()) return;
  auto sink = nn::make_node<Sink>(std::move(on_backward));
  sink->set_next_edges(torch::autograd::collect_next_edges(with_history));
  for (auto& tensor : tensors) {
    if (!tensor.grad_fn()) continue;
    auto copy = tensor.detach().clone();
    torch::autograd::set_history(copy, sink);
    tensor = std::move(copy);
  }
}

}  // namespace lockstep::ddp
