// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <memory>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/graphs/graphed_step.h>

#include "unit/graphs/fake_graph_device.h"

namespace lockstep::testing {

class GraphedStepTest : public ::testing::Test {
 protected:
  GraphedStepOptions options(GraphedStepOptions options = {}) const {
    options.graph_device = device_;
    return options;
  }
  using Tensors = GraphedStep::Tensors;
  static Tensors ones(std::int64_t rows) { return {torch::ones({rows, 2})}; }

  // A training step with `optimizer` on one weight.
  GraphedStep::Step training(torch::optim::Optimizer& optimizer) {
    return [this, &optimizer](const Tensors& inputs) -> Tensors {
      ++steps_;
      optimizer.zero_grad();
      auto loss = (inputs[0] * weight_).sum();
      loss.backward();
      optimizer.step();
      return {loss};
    };
  }

  std::shared_ptr<FakeGraphDevice> device_ = std::make_shared<FakeGraphDevice>();
  torch::Tensor weight_ = torch::ones({2}, torch::requires_grad());
  int steps_ = 0;
};

}  // namespace lockstep::testing
