// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <lockstep/lockstep.h>

// What the tests of the Trainer train.
namespace lockstep::testing {

struct Points {
  struct Batch {
    at::Tensor inputs, targets;
  };
  std::size_t size() const { return 52; }  // 7 batches of 4 per rank: an odd number for 2 per step
  Batch get_batch(const at::Tensor& indices) const {
    const auto x = indices.to(torch::kFloat).unsqueeze(1);
    return {torch::cat({(x * 0.3).sin(), (x * 0.7).cos(), x / 52}, 1), indices % 3};
  }
};

inline torch::nn::Sequential make_net() {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Linear(3, 8), torch::nn::ReLU(), torch::nn::Dropout(0.2),
                               torch::nn::Linear(8, 3));
}

}  // namespace lockstep::testing
