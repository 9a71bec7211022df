// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

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

// A layer whose forward communicates between ranks.
struct SyncedLayer {
  std::string name;
  std::vector<at::Tensor> buffers;
  std::optional<ProcessGroup> group;  // default: the default group at the time of each forward
};

// Those in `module`, itself included.
std::vector<SyncedLayer> synced_layers(const torch::nn::Module& module);

// Converts the layers of `copy`, a clone() of `module`, that convert_sync_batchnorm() has converted in
// `module`.
void convert_copy(const torch::nn::Module& module, const std::shared_ptr<torch::nn::Module>& copy);

}  // namespace lockstep::nn
