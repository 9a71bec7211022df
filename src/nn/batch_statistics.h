// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <lockstep/comm/process_group.h>

namespace lockstep::nn {

// Of a batch, for each of its C channels: fp32, or fp64 for fp64 input.
struct BatchStatistics {
  at::Tensor mean;      // [C]
  at::Tensor variance;  // [C], biased
  double count = 0;     // values of a channel
};

// The type in which a batch of this type is counted.
at::ScalarType statistics_type(at::ScalarType input);

// Of the batches of all ranks together; the same bits on each.
BatchStatistics joined_statistics(const at::Tensor& input, const ProcessGroup& group);

// Moves running statistics (in place, of any floating type) towards those of a batch.
void update_running(const at::Tensor& running_mean, const at::Tensor& running_var,
                    const BatchStatistics& batch, double momentum);

}  // namespace lockstep::nn
