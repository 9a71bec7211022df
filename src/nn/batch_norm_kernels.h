// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <lockstep/comm/process_group.h>

namespace lockstep::nn {

// The statistics of a batch for each of its C channels: fp32, or fp64 for fp64 input.
struct BatchStatistics {
  at::Tensor mean;      // [C]
  at::Tensor variance;  // [C], biased
  double count = 0;     // values per channel
};

// The statistics of all ranks' batches together; the same bits on each rank.
BatchStatistics joined_statistics(const at::Tensor& input, const ProcessGroup& group);

// Moves running statistics (in place, of any floating type) towards those of a batch.
void update_running(const at::Tensor& running_mean, const at::Tensor& running_var,
                    const BatchStatistics& batch, double momentum);

// For each channel c: result = of_gradient[c] * gradient + of_input[c] * (input - mean[c]) + constant[c].
struct ChannelFactors {
  at::Tensor of_gradient;  // [C] each, of fp32 or fp64
  at::Tensor of_input;
  at::Tensor mean;
  at::Tensor constant;
};

// `gradient` and `input` have one shape [N, C, ...], dtype and layout (contiguous or channels last), and so
// has the result.
at::Tensor normalize_gradient(const at::Tensor& gradient, const at::Tensor& input,
                              const ChannelFactors& factors);

}  // namespace lockstep::nn
