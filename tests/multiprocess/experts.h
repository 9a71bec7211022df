// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/torch.h>

#include <lockstep/nn/mixture_of_experts.h>

// What tests of experts share.
namespace lockstep::testing {

inline constexpr int kDim = 6, kExperts = 4;

inline MixtureOfExperts make_layer(MixtureOfExpertsOptions options) {
  options.dim = kDim;
  options.num_experts = kExperts;
  torch::manual_seed(21);
  return MixtureOfExperts(options, [] {
    return torch::nn::Sequential(torch::nn::Linear(kDim, 10), torch::nn::GELU(), torch::nn::Linear(10, kDim));
  });
}

inline double relative_difference(const at::Tensor& ours, const at::Tensor& expected) {
  return ((ours - expected).norm() / (expected.norm() + 1e-12)).item<double>();
}

}  // namespace lockstep::testing
