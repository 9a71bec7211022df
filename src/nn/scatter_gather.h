// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::nn {

// [i]: the parts of replica i, one of each tensor, cut along `dim` as torch::chunk does: into `count` parts
// or fewer. `empty_is`: how many replicas there are when there is no tensor. Throws ArgumentError unless all
// tensors come in equally many parts.
std::vector<std::vector<at::Tensor>> scatter(const std::vector<at::Tensor>& tensors, std::size_t count,
                                             std::int64_t dim, std::size_t empty_is);

// parts[i] of replica i, put together along `dim`; those without dimensions into a vector.
at::Tensor gather(const std::vector<at::Tensor>& parts, c10::Device device, std::int64_t dim);

// What of the gradient of a gathered tensor belongs to the parts; undefined for undefined.
std::vector<at::Tensor> scatter_gradient(const at::Tensor& gradient, const std::vector<at::Tensor>& parts,
                                         std::int64_t dim);

}  // namespace lockstep::nn
