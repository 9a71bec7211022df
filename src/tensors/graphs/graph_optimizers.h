// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <torch/optim/optimizer.h>

namespace lockstep::graphs {

using Optimizers = std::vector<torch::optim::Optimizer*>;

// Throws ArgumentError for null, and for an optimizer whose step() differs between calls, with the reason and
// the remedy.
void check_capturable(const torch::optim::Optimizer* optimizer);

// A copy of the hyper-parameters of all groups, for comparison.
class HyperParameters {
 public:
  explicit HyperParameters(const Optimizers& optimizers);
  bool operator==(const HyperParameters& other) const;

 private:
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> groups_;
};

// Copies the learning rates to the tensors that a graph reads.
void sync_learning_rates(const Optimizers& optimizers);

std::vector<at::Tensor> parameters_of(const Optimizers& optimizers);

// The state of each parameter that has one.
struct ParameterState {
  torch::optim::Optimizer* optimizer;
  void* key;
  std::vector<at::Tensor> tensors;
  std::int64_t step;  // -1: the optimizer has no step count on the host
};
std::vector<ParameterState> states_of(const Optimizers& optimizers);
// The step count of a state of states_of(), as long as the state exists; nullptr if it is not on the host.
std::int64_t* step_of(const ParameterState& state);

}  // namespace lockstep::graphs
