// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/view_as_real.h>

#include <lockstep/node/call_record.h>

namespace lockstep::comm {

// Note [Minimum and maximum over Gloo]
//
// Gloo's MIN and MAX compare with `<` alone, so whether NaN wins depends on the rank that has it and on the
// element's place in the tensor. The adapter therefore sends floating-point numbers as integers of the same
// order: the bits of a number that is not negative are such an integer, and those of a negative one are after
// its other bits were flipped. NaN becomes the integer that wins. The result is NaN wherever a rank has NaN,
// as in torch.minimum() and torch.maximum(), and -0 is less than +0.
//
// Groups with Python ranks send the numbers themselves, because PyTorch does.

// Whether the operation is MIN or MAX and the tensor has floating-point numbers, on the CPU.
bool compares_floats(ReduceOp op, const at::Tensor& numbers);

// The integers for MIN or MAX of a dense tensor, in the order of its memory. Gloo has no 16-bit integers, so
// those of float16 and bfloat16 have 32 bits.
at::Tensor to_ordered_bits(const at::Tensor& numbers, ReduceOp op);

// Writes the numbers of `ordered` to `numbers`.
void from_ordered_bits(const at::Tensor& ordered, const at::Tensor& numbers);

// Makes the mean of the ranks' sum, for backends without AVG. The parts of complex numbers are divided by
// themselves, as PyTorch does: a complex division makes both NaN if one is.
inline void divide(const at::Tensor& sum, int size) {
  const auto plain = sum.detach();
  (plain.is_complex() ? at::view_as_real(plain) : plain).div_(size);
}

// An all-gather of tensors of one shape.
using Gather = std::function<void(const at::Tensor& input, const std::vector<at::Tensor>& outputs)>;

// All-reduces a sparse tensor in place: every rank gathers the others' entries and sums them itself. Throws
// ArgumentError or DesyncError on all ranks if one of them passes an operation other than SUM,
// or a tensor of another shape or type.
void sum_sparse(at::Tensor& tensor, ReduceOp op, int rank, int size, const Gather& gather);

}  // namespace lockstep::comm
