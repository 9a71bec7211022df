// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

#include <lockstep/comm/process_group.h>

namespace lockstep::nn {

// The tensors of a BatchNorm layer; undefined ones are not there.
struct BatchNormTensors {
  at::Tensor weight;
  at::Tensor bias;
  at::Tensor running_mean;
  at::Tensor running_var;
};

// Throws ArgumentError when that is all the values of a channel that the ranks have together.
void check_count(double count, const at::Tensor& input);

// Normalizes `input` ([N, C, ...]) by the statistics of all ranks' inputs, and moves the running ones.
at::Tensor synced_batch_norm(const at::Tensor& input, const BatchNormTensors& layer, double momentum,
                             double eps, const ProcessGroup& group);

}  // namespace lockstep::nn
