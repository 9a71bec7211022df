// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <fmt/ranges.h>

#include "base/throw_error.h"
#include "nn/replicas.h"

namespace lockstep::nn {

using at::Tensor;

std::vector<std::vector<Tensor>> scatter(const std::vector<Tensor>& tensors, std::size_t count,
                                         std::int64_t dim, std::size_t parts_of_none) {
  std::vector<std::vector<Tensor>> parts(tensors.empty() ? parts_of_none : 0);
  for (std::size_t k = 0; k < tensors.size(); ++k) {
    const auto dims = tensors[k].dim();
    if (dim < -dims || dim >= dims) {
      throw_error<ArgumentError>(
          "DataParallel: tensor {} of the arguments, [{}], has no dimension {} to scatter along", k,
          fmt::join(tensors[k].sizes(), ", "), dim);
    }
    auto chunks = tensors[k].chunk(static_cast<std::int64_t>(count), dim);
    if (k == 0) parts.resize(chunks.size());
    if (chunks.size() != parts.size()) {
      throw_error<ArgumentError>(
          "DataParallel: tensor 0 of the arguments, [{}], makes {} parts along dimension {}, and tensor {}, "
          "[{}], makes {}",
          fmt::join(tensors[0].sizes(), ", "), parts.size(), dim, k, fmt::join(tensors[k].sizes(), ", "),
          chunks.size());
    }
    for (std::size_t i = 0; i < parts.size(); ++i) parts[i].push_back(std::move(chunks[i]));
  }
  return parts;
}

Tensor gather(const std::vector<Tensor>& parts, c10::Device device, std::int64_t dim) {
  std::vector<Tensor> moved;
  moved.reserve(parts.size());
  for (const auto& part : parts) moved.push_back(part.to(device));
  return parts.front().dim() == 0 ? at::stack(moved) : at::cat(moved, dim);
}

std::vector<Tensor> scatter_gradient(const Tensor& gradient, const std::vector<Tensor>& parts,
                                     std::int64_t dim) {
  std::vector<Tensor> cut(parts.size());
  if (!gradient.defined()) return cut;
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].dim() == 0) {
      cut[i] = gradient[static_cast<std::int64_t>(i)].to(parts[i].device());
      continue;
    }
    const auto length = parts[i].size(dim);
    cut[i] = gradient.narrow(dim, begin, length).to(parts[i].device());
    begin += length;
  }
  return cut;
}

}  // namespace lockstep::nn
