// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/nn/modules/linear.h>

namespace lockstep::models {

// The output layer of a language model.
class LMHeadImpl : public torch::nn::LinearImpl {
 public:
  LMHeadImpl(std::int64_t in, std::int64_t out) : LinearImpl(torch::nn::LinearOptions(in, out).bias(false)) {}

  at::Tensor forward(const at::Tensor& x) const { return at::linear(x, weight); }

  // Its weight becomes the same tensor as an embedding's.
  void tie(const at::Tensor& embedding) {
    weight = embedding;
    parameters_["weight"] = embedding;
  }
};

}  // namespace lockstep::models
