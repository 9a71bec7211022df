// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <lockstep/comm/process_group.h>

namespace lockstep::bench {

// A call with its tensors.
struct Trial {
  std::function<void()> rewrite = [] {};       // before each call: writes this rank's input
  std::function<void()> run = [] {};           // the timed call
  std::function<void()> clear_output = [] {};  // before a checked call
  // After a call: number of wrong elements on this rank.
  std::function<std::int64_t()> wrong = [] { return std::int64_t{0}; };
};

struct TrialRequest {
  ProcessGroup group;
  std::int64_t count = 0;  // elements
  c10::ScalarType dtype = c10::ScalarType::Float;
  ReduceOp op = ReduceOp::SUM;
  bool zero_copy = false;  // tensors from the backend's allocateTensor()
};

// `collective`: a name of kinds().
Trial prepare(const std::string& collective, const TrialRequest& request);

// By the names of dtypes() and --op.
c10::ScalarType scalar_type(const std::string& name);
ReduceOp reduce_op(const std::string& name);

// The lower bound of a zero-copy all-reduce of `count` elements, at most `bytes`: each rank sums its part of
// shared memory, without synchronization. float32 sums only. Collective; all ranks must be on one host.
std::function<Trial(std::int64_t count)> memory_limit(const ProcessGroup& group, std::size_t bytes);

// kBlock elements of the pattern of `rank` (see rank.h), from `offset` on.
at::Tensor pattern_block(int rank, c10::ScalarType dtype, std::int64_t offset = 0);

// kBlock elements of what a reduction of all ranks' patterns gives, from `offset` on.
at::Tensor reduced_block(int ranks, ReduceOp op, c10::ScalarType dtype, std::int64_t offset = 0);

// Elements in which `tensor`, flat and contiguous, is not `block` over and over.
std::int64_t differing(const at::Tensor& tensor, const at::Tensor& block);

// Makes `tensor`, flat and contiguous, `block` over and over.
void refill(const at::Tensor& tensor, const at::Tensor& block);

}  // namespace lockstep::bench
