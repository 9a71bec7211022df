// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::optim {

// The parameter of an optimizer may be rows of a larger tensor, as those of fully_shard() are.
struct ParameterRows {
  std::vector<std::int64_t> sizes;  // of the whole tensor
  std::int64_t first = 0;
};

// The note lives as long as the tensor.
void note_rows(const at::Tensor& parameter, ParameterRows rows);
// nullptr: the parameter is whole.
const ParameterRows* rows_of(const at::Tensor& parameter);

}  // namespace lockstep::optim
