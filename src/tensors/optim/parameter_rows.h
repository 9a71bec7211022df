// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::optim {

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
