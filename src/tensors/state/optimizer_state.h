// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/optim/optimizer.h>

#include <lockstep/serialize/value.h>

// State dicts of optimizers whose parameters are rows of larger tensors.
namespace lockstep::state {

bool has_rows(const torch::optim::Optimizer& optimizer);
// Every state of a parameter of rows becomes a ShardedTensor. Throws ArgumentError for a state that is
// neither rows nor a number.
Dict with_sharded_states(const torch::optim::Optimizer& optimizer, Dict state_dict);
// The inverse. Also cuts this rank's rows from whole tensors. Throws CheckpointError if these rows are not
// there.
Dict with_own_rows(const torch::optim::Optimizer& optimizer, const Dict& state_dict);
// state_dict(); before the optimizer's first step with states of step 0, so that a checkpoint has a place to
// load into. Throws ArgumentError if there are gradients, but no states.
Dict complete_state_dict(torch::optim::Optimizer& optimizer);

}  // namespace lockstep::state
