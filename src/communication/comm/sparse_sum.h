// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/node/call_record.h>

namespace lockstep::comm {

// An all-gather of tensors of one shape.
using Gather = std::function<void(const at::Tensor& input, const std::vector<at::Tensor>& outputs)>;

// All-reduces a sparse tensor in place: every rank gathers the others' entries and sums them itself. Throws
// ArgumentError or DesyncError on all ranks if one of them passes an operation other than SUM,
// or a tensor of another shape or type.
void sum_sparse(at::Tensor& tensor, ReduceOp op, int rank, int size, const Gather& gather);

}  // namespace lockstep::comm
