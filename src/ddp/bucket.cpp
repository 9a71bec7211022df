// SPDX-License-Identifier: BSD-3-Clause
#include "ddp/bucket.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/zeros.h>

namespace lockstep::ddp {
namespace {

at::Tensor zeroed_memory(std::int64_t numel, const at::TensorOptions& options, const ProcessGroup& group) {
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

std::vector<Bucket> make_buckets(const BucketPlan& plan, const std::vector<TrainedParameter>& parameters,
                                 std::optional<at::ScalarType> dtype) {
  std::vector<Bucket> buckets;
  for (const auto& indices : plan) {
    const auto& first = parameters[indices.front()];
    Bucket bucket{.sparse = first.sparse, .options = first.tensor.options().requires_grad(false)};
    if (dtype && first.tensor.is_floating_point()) bucket.options = bucket.options.dtype(*dtype);
    for (const auto index : indices) {
      bucket.slots.push_back({.parameter = index, .offset = bucket.numel});
      bucket.numel += parameters[index].tensor.numel();
    }
    bucket.bytes = bucket.numel * static_cast<std::int64_t>(bucket.options.dtype().itemsize());
    buckets.push_back(std::move(bucket));
  }
  return buckets;
}

void allocate(Bucket& bucket, const std::vector<TrainedParameter>& parameters, const ProcessGroup& group) {
  if (bucket.sparse || bucket.flat.defined()) return;
  bucket.flat = zeroed_memory(bucket.numel, bucket.options, group);
  for (auto& slot : bucket.slots) {
    slot.view = plain_alias(bucket.flat, slot.offset, parameters[slot.parameter].tensor);
  }
}

at::Tensor zeros_of(const Bucket& bucket, const std::vector<TrainedParameter>& parameters,
                    const ProcessGroup& group) {
  if (!bucket.sparse) return zeroed_memory(bucket.numel, bucket.options, group);
  const auto sizes = parameters[bucket.slots.front().parameter].tensor.sizes();
  return at::sparse_coo_tensor(at::empty({1, 0}, bucket.options.dtype(at::kLong)),
                               at::empty({0, sizes.back()}, bucket.options), sizes);
}

void release(Bucket& bucket) {
  bucket.flat.reset();
  bucket.work = {};
  for (auto& slot : bucket.slots) slot.view.reset();
}

}  // namespace lockstep::ddp
