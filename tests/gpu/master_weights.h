// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <unordered_set>
#include <vector>

#include <torch/torch.h>

namespace lockstep::gpu {

// Lets an optimizer work on copies in fp32 of parameters in bf16, so that small changes are not rounded away.
class MasterWeights {
 public:
  explicit MasterWeights(const std::vector<at::Tensor>& weights) {
    std::unordered_set<const void*> known;  // a tied weight is listed for each module that has it
    for (const auto& weight : weights) {
      if (!known.insert(weight.unsafeGetTensorImpl()).second) continue;
      weights_.push_back(weight);
      auto copy = weight.detach().to(at::kFloat);
      gradients_.push_back(at::zeros_like(copy));
      copy.mutable_grad() = gradients_.back();
      copies_.push_back(std::move(copy));
    }
  }

  // The optimizer's parameters.
  const std::vector<at::Tensor>& copies() const { return copies_; }

  // After backward: every weight must have a gradient.
  void take_gradients() {
    std::vector<at::Tensor> gradients;
    for (const auto& weight : weights_) gradients.push_back(weight.grad());
    at::_foreach_copy_(gradients_, gradients);
  }

  // After the optimizer's step.
  void give_weights() {
    const torch::NoGradGuard no_grad;
    at::_foreach_copy_(weights_, copies_);
  }

 private:
  std::vector<at::Tensor> weights_, copies_, gradients_;
};

}  // namespace lockstep::gpu
