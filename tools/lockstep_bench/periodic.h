// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include <lockstep/node/call_record.h>

namespace lockstep::bench {

// kBlock elements of the pattern of `rank`, from `offset` on.
at::Tensor pattern_block(int rank, c10::ScalarType dtype, std::int64_t offset = 0);

// What a reduction of all ranks' patterns gives, likewise.
at::Tensor reduced_block(int ranks, ReduceOp op, c10::ScalarType dtype, std::int64_t offset = 0);

// Elements in which `tensor`, flat and contiguous, is not `block` over and over.
std::int64_t differing(const at::Tensor& tensor, const at::Tensor& block);

// Makes `tensor`, flat and contiguous, `block` over and over.
void refill(const at::Tensor& tensor, const at::Tensor& block);

}  // namespace lockstep::bench
