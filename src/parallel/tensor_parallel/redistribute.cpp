// SPDX-License-Identifier: BSD-3-Clause
#include "tensor_parallel/redistribute.h"

#include <utility>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <fmt/ranges.h>

#include "base/throw_error.h"
#include "comm/call_site.h"
#include "comm/mapped_memory.h"
#include "intercept/record.h"
#include "tensor_parallel/module_check.h"

namespace lockstep::tensor_parallel {
namespace {

constexpr const char* kParts = "parts of a tensor-parallel module";

using at::Tensor;
using Tensors = std::vector<Tensor>;
using Kind = Placement::Kind;

std::int64_t dim_in(const Tensor& tensor, Placement placement) {
  const auto dim = placement.dim() < 0 ? placement.dim() + tensor.dim() : placement.dim();
  if (dim < 0 || dim >= tensor.dim()) {
    throw_error<ArgumentError>("Shard({}): the tensor has {} dimensions", placement.dim(), tensor.dim());
  }
  return dim;
}

// `part` with `size` elements along `dim`.
Tensor padded(const Tensor& part, std::int64_t dim, std::int64_t size) {
  if (part.size(dim) == size) return part.contiguous();
  auto sizes = part.sizes().vec();
  sizes[static_cast<std::size_t>(dim)] = size - part.size(dim);
  return at::cat({part, at::zeros(sizes, part.options())}, dim);
}

// A copy in memory that the backend reduces where it is.
Tensor copy_for_call(const Tensor& tensor, const ProcessGroup& group) {
  return comm::memory_for_calls(group, tensor.numel(), tensor.options()).view(tensor.sizes()).copy_(tensor);
}

Tensor all_reduced(const Tensor& tensor, const ProcessGroup& group) {
  auto sum = copy_for_call(tensor, group);
  const comm::CallSite site(kParts);
  group.all_reduce(sum);
  return sum;
}

// This rank's part of the sum, whose parts lie one after the other as the call sends them.
Tensor reduced_part(const Tensor& tensor, const ProcessGroup& group, std::int64_t dim) {
  const Chunk own(tensor.size(dim), group.size(), group.rank());
  Tensors parts;
  for (int rank = 0; rank < group.size(); ++rank) {
    const Chunk chunk(tensor.size(dim), group.size(), rank);
    parts.push_back(padded(tensor.narrow(dim, chunk.first, chunk.count), dim, own.chunk));
  }
  const auto all = at::cat(parts, 0);
  const auto sum = at::empty_like(parts.front());
  const comm::CallSite site(kParts);
  group.reduce_scatter_tensor(sum, all);
  return sum.narrow(dim, 0, own.count);
}

Tensor part_of(const Tensor& tensor, const ProcessGroup& group, std::int64_t dim) {
  const Chunk own(tensor.size(dim), group.size(), group.rank());
  return tensor.narrow(dim, own.first, own.count).contiguous();
}

Tensor convert(const Tensor& tensor, const ProcessGroup& group, const Route& route) {
  const auto& [from, to, gradient_from, gradient_to, from_total, to_total] = route;
  if (from == to || group.size() == 1) return tensor;
  if (to.kind() == Kind::partial)
    throw_error<ArgumentError>("a tensor cannot become Partial(); it is what operators on parts return");
  if (from.kind() == Kind::shard) {
    const auto dim = dim_in(tensor, from);
    if (to.kind() == Kind::shard && dim_in(tensor, to) == dim) return tensor;
    const auto total = from_total > 0 ? from_total : tensor.size(dim) * group.size();
    const auto whole = gather_chunks(tensor, group, dim, total);
    if (to.kind() == Kind::replicate) return whole;
    return convert(whole, group, {Replicate(), to, to, to, 0, to_total});
  }
  if (to.kind() == Kind::replicate) return all_reduced(tensor, group);
  const auto dim = dim_in(tensor, to);
  if (to_total == 0 && tensor.size(dim) % group.size() != 0) {
    throw_error<ArgumentError>(
        "dimension {} of a tensor of shape {} has {} elements, which {} ranks cannot share equally; pad it",
        dim, fmt::join(tensor.sizes(), "x"), tensor.size(dim), group.size());
  }
  return from.kind() == Kind::partial ? reduced_part(tensor, group, dim) : part_of(tensor, group, dim);
}

Tensors sums_of(const Tensors& gradients, const ProcessGroup& group) {
  Tensors sums;
  if (c10::GradMode::is_enabled()) {
    for (const auto& gradient : gradients)
      sums.push_back(redistribute(gradient, group, {Partial(), Replicate(), Replicate(), Replicate()}));
    return sums;
  }
  // Not one call with all: over gloo the bits depend on a number's place in the call.
  const comm::CallSite site("gradients of a tensor-parallel module");
  std::vector<Work> works;
  for (const auto& gradient : gradients) {
    sums.push_back(copy_for_call(gradient, group));
    works.push_back(group.all_reduce_async(sums.back()));
  }
  for (auto& work : works) work.wait();
  return sums;
}

// Called in forward. The result makes calls in backward: as this thread's ModuleCheck, if it is in one's
// run().
auto runner() {
  return [weak = ModuleCheck::listening()](const auto& calls) {
    const auto check = weak.lock();
    return check ? check->run(calls) : calls();
  };
}

}  // namespace

Tensor gather_chunks(const Tensor& part, const ProcessGroup& group, std::int64_t dim, std::int64_t total) {
  const auto chunk = Chunk(total, group.size(), group.rank()).chunk;
  const auto own = padded(part.detach(), dim, chunk);
  auto sizes = own.sizes().vec();
  sizes.insert(sizes.begin(), group.size());
  const auto all = at::empty(sizes, own.options());
  const comm::CallSite site(kParts);
  group.all_gather_into_tensor(all, own);
  return at::cat(all.unbind(0), dim).narrow(dim, 0, total).contiguous();
}

Tensor redistribute(const Tensor& tensor, const ProcessGroup& group, const Route& route) {
  if (route.from == route.to && route.gradient_from == route.gradient_to) return tensor;
  // Detached, since a view of a tensor without history cannot be changed in place.
  auto output = convert(tensor.detach(), group, route).detach();
  const Route back{.from = route.gradient_from,
                   .to = route.gradient_to,
                   .gradient_from = route.from,
                   .gradient_to = route.to,
                   .from_total = route.to_total,
                   .to_total = route.from_total};
  return intercept::record("RedistributeBackward", {tensor}, {std::move(output)},
                           [=, run = runner()](Tensors gradients) -> Tensors {
                             return run([&] { return Tensors{redistribute(gradients[0], group, back)}; });
                           })[0];
}

Placement gradient_layout(Placement layout) { return layout.kind() == Kind::partial ? Replicate() : layout; }

Tensors with_summed_gradients(const Tensors& tensors, const ProcessGroup& group) {
  Tensors outputs;
  for (const auto& tensor : tensors) outputs.push_back(tensor.detach());
  return intercept::record("SummedGradientsBackward", tensors, std::move(outputs),
                           [=, run = runner()](const Tensors& gradients) {
                             return run([&] { return sums_of(gradients, group); });
                           });
}

}  // namespace lockstep::tensor_parallel
