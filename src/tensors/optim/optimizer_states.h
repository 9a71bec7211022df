// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include <torch/optim/optimizer.h>

#include <lockstep/serialize/value.h>

namespace lockstep::optim {

// The state dict with the states that this rank has, which may be a part of them. Its tensors share the
// optimizer's data. Throws ArgumentError for an unknown class of optimizers.
Dict states_of_rank(const torch::optim::Optimizer& optimizer);

// Loads a dict of C++ or Python. Throws CheckpointError and leaves the optimizer unchanged if it does not
// fit.
void load_states(torch::optim::Optimizer& optimizer, const Dict& state_dict);

// For ranks with the same parameters: the states of this rank, and what adds them to those of another.
std::string packed_states(const torch::optim::Optimizer& optimizer);
void add_states(torch::optim::Optimizer& optimizer, const std::string& packed);

}  // namespace lockstep::optim
