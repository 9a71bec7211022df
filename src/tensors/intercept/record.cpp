// SPDX-License-Identifier: BSD-3-Clause
#include "intercept/record.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include "base/caller_place.h"
#include "device/libtorch_versions.h"

namespace lockstep::intercept {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

class CommunicationBackward : public torch::autograd::Node {
 public:
  CommunicationBackward(const char* name, Gradient gradient) : name_(name), gradient_(std::move(gradient)) {}

  std::string name() const override { return name_; }

  // The other ranks wait for the call, so outputs without a gradient have one of zeros.
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    const CallerPlace place(where_);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined()) gradients[i] = input_metadata(i).zeros_like();
    }
    return gradient_(std::move(gradients));
  }

 private:
  const char* name_;
  Gradient gradient_;
  std::source_location where_ = CallerPlace::current();  // backward runs in a thread of LibTorch
};

}  // namespace

Tensors with_history(const char* name, const Tensors& inputs, Tensors outputs, Gradient gradient) {
  const auto node = libtorch::make_node<CommunicationBackward>(name, std::move(gradient));
  node->set_next_edges(torch::autograd::collect_next_edges(inputs));
  for (auto& output : outputs) torch::autograd::set_history(output, node);
  return outputs;
}

Tensors record(const char* name, const Tensors& inputs, Tensors outputs, Gradient gradient) {
  const bool records = c10::GradMode::is_enabled() && torch::autograd::compute_requires_grad(inputs);
  return records ? with_history(name, inputs, std::move(outputs), std::move(gradient)) : outputs;
}

}  // namespace lockstep::intercept
