// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <torch/optim/optimizer.h>

namespace lockstep::graphs {

using Optimizers = std::vector<torch::optim::Optimizer*>;

// Throws ArgumentError for null, and for an optimizer whose step does not stay the same from call to call,
// saying why and what to do.
void check_replayable(const torch::optim::Optimizer* optimizer);

// Whether an optimizer's hyper-parameters, in all its groups, are what they were.
class HyperParameters {
 public:
  explicit HyperParameters(const Optimizers& optimizers);
  bool operator==(const HyperParameters& other) const;

 private:
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> groups_;
};

// Learning rates that a graph reads from tensors are what was said last.
void bring_rates(const Optimizers& optimizers);

std::vector<at::Tensor> parameters_of(const Optimizers& optimizers);

// The state of each parameter that has one, with where its step count is, if it counts.
struct ParameterState {
  torch::optim::Optimizer* optimizer;
  void* key;
  std::vector<at::Tensor> tensors;
  std::int64_t step;  // -1: not counted
};
std::vector<ParameterState> states_of(const Optimizers& optimizers);
// Sets the count of one of states_of().
void set_step(const ParameterState& state, std::int64_t step);

// Moves its count on.
void advance_step(const ParameterState& state, std::int64_t steps);

}  // namespace lockstep::graphs
