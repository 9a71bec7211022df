// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include <torch/nn/module.h>

#include <lockstep/comm/process_group.h>

namespace lockstep::nn {

// The tensors of a BatchNorm layer; any may be undefined.
struct BatchNormTensors {
  at::Tensor weight;
  at::Tensor bias;
  at::Tensor running_mean;
  at::Tensor running_var;
};

// Throws ArgumentError if `count`, the values per channel of all ranks together, is 1.
void check_count(double count, const at::Tensor& input);

// Normalizes `input` ([N, C, ...]) by the statistics of all ranks' inputs, and updates the running ones.
at::Tensor synced_batch_norm(const at::Tensor& input, const BatchNormTensors& layer, double momentum,
                             double eps, const ProcessGroup& group);

// The name of the first layer in `module` whose forward communicates between ranks, or "".
std::string find_synced_layer(const torch::nn::Module& module);

}  // namespace lockstep::nn
