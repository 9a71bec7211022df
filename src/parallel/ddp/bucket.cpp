// SPDX-License-Identifier: BSD-3-Clause
#include "ddp/bucket.h"

#include <algorithm>
#include <unordered_set>

#include <ATen/ops/empty.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <torch/nn/modules/embedding.h>

#include "comm/mapped_memory.h"

namespace lockstep::ddp {
namespace {

BucketPlan assign(const std::vector<TrainedParameter>& parameters, const std::vector<at::Tensor>& tensors,
                  const std::vector<std::size_t>& limits, const std::vector<std::int64_t>& order) {
  std::vector<bool> sparse;
  for (const auto& parameter : parameters) sparse.push_back(parameter.sparse);
  return std::get<0>(c10d::compute_bucket_assignment_by_size(tensors, limits, sparse, order));
}

// Ranks have different numbers of rows; each sends as many as the one that has most.
struct Gathered {
  at::Tensor counts;   // [ranks], of rows
  at::Tensor indices;  // [ranks, rows, sparse dimensions]
  at::Tensor values;   // [ranks, rows, ...]
};

at::Tensor padded(const at::Tensor& rows, std::int64_t count) {
  auto sizes = rows.sizes().vec();
  sizes.front() = count;
  auto all = at::zeros(sizes, rows.options());
  all.narrow(0, 0, rows.size(0)).copy_(rows);
  return all;
}

at::Tensor room_for_all(const at::Tensor& own, int ranks) {
  auto sizes = own.sizes().vec();
  sizes.insert(sizes.begin(), ranks);
  return at::empty(sizes, own.options());
}

at::Tensor sum(const Gathered& all, const at::Tensor& like) {
  at::Tensor total;
  const auto counts = all.counts.to(at::kCPU);
  for (std::int64_t rank = 0; rank < counts.numel(); ++rank) {
    const auto rows = counts[rank].item<std::int64_t>();
    const auto part = at::sparse_coo_tensor(all.indices[rank].narrow(0, 0, rows).t().contiguous(),
                                            all.values[rank].narrow(0, 0, rows), like.sizes());
    total = total.defined() ? total + part : part;
  }
  return total.coalesce();
}

}  // namespace

std::vector<TrainedParameter> trained_parameters(const torch::nn::Module& module,
                                                 const std::vector<modules::NamedTensor>& parameters) {
  std::unordered_set<const void*> sparse;
  const auto add_if_sparse = [&](const auto* embedding) {
    if (embedding == nullptr || !embedding->options.sparse()) return;
    sparse.insert(embedding->weight.unsafeGetTensorImpl());
  };
  for (const auto& each : module.modules()) {
    add_if_sparse(each->as<torch::nn::Embedding>());
    add_if_sparse(each->as<torch::nn::EmbeddingBag>());
  }
  std::vector<TrainedParameter> trained;
  for (const auto& [name, tensor] : parameters) {
    if (tensor.requires_grad()) {
      trained.push_back({name, tensor, sparse.contains(tensor.unsafeGetTensorImpl())});
    }
  }
  return trained;
}

BucketPlan initial_plan(const std::vector<TrainedParameter>& parameters,
                        const std::vector<std::size_t>& limits) {
  std::vector<at::Tensor> tensors;
  for (const auto& parameter : parameters) tensors.push_back(parameter.tensor);
  auto plan = assign(parameters, tensors, limits, {});
  std::ranges::reverse(plan);
  return plan;
}

BucketPlan plan_by_order(const std::vector<TrainedParameter>& parameters,
                         const std::vector<std::int64_t>& order, const std::vector<std::size_t>& limits) {
  std::vector<at::Tensor> tensors;
  for (const auto index : order) tensors.push_back(parameters[static_cast<std::size_t>(index)].tensor);
  return assign(parameters, tensors, limits, order);
}

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
  bucket.flat = comm::memory_for_calls(group, bucket.numel, bucket.options).zero_();
  for (auto& slot : bucket.slots) {
    slot.view = alias_of(bucket.flat, slot.offset, parameters[slot.parameter].tensor);
  }
}

void release(Bucket& bucket) {
  bucket.flat.reset();
  bucket.work = {};
  for (auto& slot : bucket.slots) slot.view.reset();
}

at::Tensor zeros_of(const Bucket& bucket, const std::vector<TrainedParameter>& parameters,
                    const ProcessGroup& group) {
  if (!bucket.sparse) return comm::memory_for_calls(group, bucket.numel, bucket.options).zero_();
  const auto sizes = parameters[bucket.slots.front().parameter].tensor.sizes();
  return at::sparse_coo_tensor(at::empty({1, 0}, bucket.options.dtype(at::kLong)),
                               at::empty({0, sizes.back()}, bucket.options), sizes);
}

at::Tensor alias_of(const at::Tensor& flat, std::int64_t offset, const at::Tensor& like) {
  const bool keep_strides = like.is_non_overlapping_and_dense();
  const auto strides =
      keep_strides ? like.strides().vec() : at::empty(like.sizes(), at::kMeta).strides().vec();
  auto alias = at::empty({0}, flat.options());
  alias.set_(flat.storage(), flat.storage_offset() + offset, like.sizes(), strides);
  return alias;
}

BucketWork sum_sparse(const at::Tensor& tensor, const ProcessGroup& group, std::source_location where) {
  const auto own = tensor.coalesce();
  const auto count = at::zeros({1}, own.indices().options());
  count.fill_(own.indices().size(1));
  const auto counts = at::empty({group.size()}, count.options());

  const auto gather_rows = [own, counts, group, where] {
    const auto most = counts.max().item<std::int64_t>();
    const auto indices = padded(own.indices().t().contiguous(), most);
    const auto values = padded(own.values().contiguous(), most);
    const Gathered all{counts, room_for_all(indices, group.size()), room_for_all(values, group.size())};
    const auto gather_values = [=] {
      auto work = group.all_gather_into_tensor_async(all.values, values, where);
      return BucketWork(std::move(work), [=] { return BucketWork(sum(all, own)); });
    };
    auto work = group.all_gather_into_tensor_async(all.indices, indices, where);
    return BucketWork(std::move(work), gather_values);
  };
  return {group.all_gather_into_tensor_async(counts, count, where), gather_rows};
}

}  // namespace lockstep::ddp
