// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <string>

#include <torch/optim/optimizer.h>

#include <lockstep/serialize/value.h>

// StateDictOptions::flatten_optimizer_state_dict: "state.<parameter>.<key>" and "param_groups.<parameter>.<option>".
namespace lockstep::fsdp {

// `nested`: {"state": {name: ...}, "param_groups": [{"params": [name, ...], ...}, ...]}.
Dict flattened(const Dict& nested);

// The nested dict, with the groups of the optimizer. Throws CheckpointError if `flat` lacks the options of a parameter,
// or has different options for parameters of one group.
Dict unflattened(const Dict& flat, const torch::optim::Optimizer& optimizer,
                 const std::function<std::string(const at::Tensor&)>& name_of);

}  // namespace lockstep::fsdp
