// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>

#include <torch/optim/optimizer.h>

#include "optim/fields.h"

namespace lockstep::optim {

// A class of optimizers: its options and the state of a parameter, under Python's names. Everything that
// reads, writes, moves or counts them goes through it.
struct OptimizerKind {
  bool (*includes)(const torch::optim::Optimizer& optimizer);
  // A copy of a group's options, of the optimizer's own class. Throws ArgumentError for options of another
  // kind.
  std::unique_ptr<torch::optim::OptimizerOptions> (*options)(const torch::optim::Optimizer& optimizer,
                                                             std::size_t group);
  std::unique_ptr<torch::optim::OptimizerParamState> (*new_state)(
      const torch::optim::Optimizer& optimizer, const at::Tensor& parameter,
      const torch::optim::OptimizerOptions& options);
  void (*visit_state)(torch::optim::OptimizerParamState& state, Fields& fields);
};

// Throws ArgumentError for an unknown class.
const OptimizerKind& kind_of(const torch::optim::Optimizer& optimizer);

// Of any kind. Returns false for options of an unknown class.
bool visit_options(torch::optim::OptimizerOptions& options, Fields& fields);

}  // namespace lockstep::optim
