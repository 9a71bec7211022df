// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "nn/replicas.h"

namespace lockstep::nn {

// The result of a forward on replicas: [i] is replica i's.
struct ReplicasForward {
  std::vector<std::vector<at::Tensor>> inputs;   // its parts of the inputs, leaves of its graph
  std::vector<std::vector<at::Tensor>> outputs;  // the ends of its graph
};

// Makes `gathered` depend on `inputs` and on the original module's parameters. Its backward runs those of the
// replicas in parallel.
void record_backward(const std::vector<at::Tensor>& gathered, const std::vector<at::Tensor>& inputs,
                     ReplicasForward forward, std::int64_t dim, std::shared_ptr<Replicas> replicas);

// Cuts each tensor along `dim` as torch::chunk does, into `count` parts or fewer. Returns [i] = the parts of
// replica i; without tensors `parts_of_none` empty lists. Throws ArgumentError unless all tensors have
// equally many parts.
std::vector<std::vector<at::Tensor>> scatter(const std::vector<at::Tensor>& tensors, std::size_t count,
                                             std::int64_t dim, std::size_t parts_of_none);

// Concatenates parts[i] of replica i along `dim`; stacks tensors without dimensions.
at::Tensor gather(const std::vector<at::Tensor>& parts, c10::Device device, std::int64_t dim);

// Cuts the gradient of a gathered tensor into those of its parts; undefined for undefined.
std::vector<at::Tensor> scatter_gradient(const at::Tensor& gradient, const std::vector<at::Tensor>& parts,
                                         std::int64_t dim);

}  // namespace lockstep::nn
