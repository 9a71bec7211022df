// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include <torch/torch.h>

// What tests of pipelines share.
namespace lockstep::testing {

inline constexpr int kWidth = 12;

inline torch::nn::Sequential make_stage(int index) {
  torch::manual_seed(static_cast<std::uint64_t>(30 + index));
  torch::nn::Linear first(kWidth, kWidth);
  return torch::nn::Sequential(first, torch::nn::Tanh(), torch::nn::Linear(kWidth, kWidth));
}

inline at::Tensor loss_of(const at::Tensor& output, const at::Tensor& target) {
  return torch::mse_loss(output, target);
}

}  // namespace lockstep::testing
