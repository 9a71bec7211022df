// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <string>

#include <torch/optim/optimizer.h>

#include <lockstep/serialize/value.h>

// State dicts of optimizers: those whose parameters are rows of larger tensors, and flat ones.
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

// StateDictOptions::flatten_optimizer_state_dict: "state.<parameter>.<key>" and "param_groups.<parameter>.<option>" of
// `nested`, {"state": {name: ...}, "param_groups": [{"params": [name, ...], ...}, ...]}.
Dict flattened(const Dict& nested);
// The nested dict, with the groups of the optimizer. Throws CheckpointError if `flat` lacks the options of a parameter,
// or has different options for parameters of one group.
Dict unflattened(const Dict& flat, const torch::optim::Optimizer& optimizer,
                 const std::function<std::string(const at::Tensor&)>& name_of);

}  // namespace lockstep::state
