// SPDX-License-Identifier: BSD-3-Clause
#include <vector>

#include <ATen/ops/cat.h>
#include <fmt/ranges.h>

#include <lockstep/context_parallel/context_parallel.h>
#include <lockstep/nn/functional.h>

#include "base/throw_error.h"

namespace lockstep::context_parallel {
namespace {

using at::Tensor;

std::int64_t dim_of(const Tensor& tensor, std::int64_t dim, const char* caller) {
  if (dim >= -tensor.dim() && dim < tensor.dim()) return dim < 0 ? dim + tensor.dim() : dim;
  throw_error<ArgumentError>("context_parallel::{}: dim {} of a tensor of {} dimensions", caller, dim,
                             tensor.dim());
}

// The size of each of `parts` equal parts.
std::int64_t divided(const Tensor& tensor, std::int64_t dim, std::int64_t parts, const char* caller,
                     const ProcessGroup& group) {
  const auto size = tensor.size(dim);
  if (size % parts == 0) return size / parts;
  throw_error<ArgumentError>(
      "context_parallel::{}: rank {} of {}: dimension {} of a tensor of shape {} has {} elements, which is "
      "not a multiple of {}; pad the sequence{}",
      caller, group.rank(), group.size(), dim, fmt::join(tensor.sizes(), "x"), size, parts,
      parts == group.size() ? "" : ", or use LoadBalancer::none");
}

}  // namespace

Tensor shard(const Tensor& tensor, const DeviceMesh& mesh, std::int64_t given_dim, LoadBalancer load_balancer,
             std::source_location) {
  const auto group = mesh.get_group();
  const auto dim = dim_of(tensor, given_dim, "shard");
  const std::int64_t rank = group.rank(), ranks = group.size();
  if (load_balancer == LoadBalancer::none) {
    const auto count = divided(tensor, dim, ranks, "shard", group);
    return tensor.narrow(dim, rank * count, count).contiguous();
  }
  const auto count = divided(tensor, dim, 2 * ranks, "shard", group);
  return at::cat(
      {tensor.narrow(dim, rank * count, count), tensor.narrow(dim, (2 * ranks - 1 - rank) * count, count)},
      dim);
}

Tensor unshard(const Tensor& part, const DeviceMesh& mesh, std::int64_t given_dim, LoadBalancer load_balancer,
               std::source_location where) {
  const auto group = mesh.get_group();
  const auto dim = dim_of(part, given_dim, "unshard");
  const bool is_balanced = load_balancer == LoadBalancer::head_tail;
  const auto head = is_balanced ? divided(part, dim, 2, "unshard", group) : part.size(dim);
  const auto parts = nn::functional::all_gather(part, group, where);
  std::vector<Tensor> pieces;
  for (const auto& each : parts) pieces.push_back(each.narrow(dim, 0, head));
  if (is_balanced) {
    for (auto each = parts.rbegin(); each != parts.rend(); ++each)
      pieces.push_back(each->narrow(dim, head, head));
  }
  return at::cat(pieces, dim);
}

}  // namespace lockstep::context_parallel
