// SPDX-License-Identifier: BSD-3-Clause
#include "ddp/bucket.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

namespace lockstep::ddp {
namespace {

at::Tensor allocate(std::int64_t numel, const at::TensorOptions& options, const ProcessGroup& group) {
  const auto backend = group.backend();
  const auto device = options.device();
  if (backend->supportsTensorAlloc(device.has_index() ? device.index() : 0)) {
    return backend->allocateTensor(numel, options).zero_();
  }
  return at::zeros({numel}, options);
}

// A tensor on the flat tensor's storage that autograd does not know as a view: zero_grad() detaches
// gradients in place, which a view forbids.
at::Tensor plain_alias(const at::Tensor& flat, std::int64_t offset, const at::Tensor& like) {
  const bool keep_strides = like.is_non_overlapping_and_dense();
  const auto strides =
      keep_strides ? like.strides().vec() : at::empty(like.sizes(), at::kMeta).strides().vec();
  auto alias = at::empty({0}, flat.options());
  alias.set_(flat.storage(), flat.storage_offset() + offset, like.sizes(), strides);
  return alias;
}

}  // namespace

std::vector<Bucket> make_buckets(const BucketPlan& plan, const std::vector<NamedTensor>& parameters,
                                 const ProcessGroup& group) {
  std::vector<Bucket> buckets;
  for (const auto& indices : plan) {
    std::int64_t numel = 0;
    for (const auto index : indices) numel += parameters[index].tensor.numel();
    const auto& first = parameters[indices.front()].tensor;
    Bucket bucket{.flat = allocate(numel, first.options().requires_grad(false), group)};
    std::int64_t offset = 0;
    for (const auto index : indices) {
      const auto& tensor = parameters[index].tensor;
      bucket.slots.push_back({index, plain_alias(bucket.flat, offset, tensor)});
      offset += tensor.numel();
    }
    buckets.push_back(std::move(bucket));
  }
  return buckets;
}

}  // namespace lockstep::ddp
