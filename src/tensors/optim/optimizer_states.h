// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <lockstep/serialize/value.h>

namespace lockstep::optim {

// The parameters of all groups in their order, which numbers them in state dicts.
std::vector<at::Tensor> parameters_of(const torch::optim::Optimizer& optimizer);

// The state dict with the states that this rank has, which may be a part of them. Its tensors share the
// optimizer's data. Throws ArgumentError for an unknown class of optimizers.
Dict states_of_rank(const torch::optim::Optimizer& optimizer);

// Loads a dict of C++ or Python. Throws CheckpointError and leaves the optimizer unchanged if it does not
// fit.
void load_states(torch::optim::Optimizer& optimizer, const Dict& state_dict);

// Restores what states_of_rank() has returned, without conversions. Tensors of states keep their memory where shape and
// dtype are as before.
void restore_states(torch::optim::Optimizer& optimizer, const Dict& state_dict);

// For ranks with the same parameters: the states of this rank, and what adds them to those of another.
std::string packed_states(const torch::optim::Optimizer& optimizer);
void add_states(torch::optim::Optimizer& optimizer, const std::string& packed);

// The parameter of an optimizer may be a part of a larger tensor, as those of fully_shard() are.
struct ParameterRows {
  std::vector<std::int64_t> sizes;    // of the whole tensor
  std::vector<std::int64_t> offsets;  // of the part in it
};

// The part of a whole tensor.
at::Tensor narrow_to_part(const at::Tensor& whole, at::IntArrayRef offsets, at::IntArrayRef sizes);

// The note lives as long as the tensor.
void note_rows(const at::Tensor& parameter, ParameterRows rows);
// nullptr: the parameter is whole.
const ParameterRows* rows_of(const at::Tensor& parameter);

}  // namespace lockstep::optim
