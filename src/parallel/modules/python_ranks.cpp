// SPDX-License-Identifier: BSD-3-Clause
#include "modules/python_ranks.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "base/throw_error.h"
#include "comm/group_state.h"
#include "modules/broadcast.h"

namespace lockstep::modules {
namespace {

// Python's limit for flattened copies.
constexpr std::size_t kCoalescedBytes = std::size_t{250} * 1024 * 1024;

template <typename Integer>
std::vector<Integer> values_in(const at::Tensor& tensor) {
  const auto host = tensor.to(at::kCPU);
  return {host.data_ptr<Integer>(), host.data_ptr<Integer>() + host.numel()};
}

void verify_count(const ProcessGroup& group, std::size_t count, c10::Device device,
                  std::source_location where) {
  const auto own =
      at::tensor(static_cast<std::int64_t>(count), at::TensorOptions().dtype(at::kLong)).to(device).view(1);
  std::vector<at::Tensor> counts;
  for (int rank = 0; rank < group.size(); ++rank) counts.push_back(at::empty_like(own));
  group.all_gather(counts, own, where);
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto other = values_in<std::int64_t>(counts[static_cast<std::size_t>(rank)]).front();
    if (other == values_in<std::int64_t>(own).front()) continue;
    throw_error<DesyncError>(
        comm::about(group, {rank}),
        "{}: DistributedDataParallel: the ranks' modules differ: this rank trains {} parameters, rank {} {}. "
        "Build the same module on every rank",
        comm::state_of(group).whoami(), count, rank, other);
  }
}

std::vector<std::int64_t> layout_of(const at::Tensor& tensor) {
  auto numbers = tensor.sizes().vec();
  const auto strides = tensor.strides();
  numbers.insert(numbers.end(), strides.begin(), strides.end());
  return numbers;
}

}  // namespace

void verify_with_python(const ProcessGroup& group, const std::vector<NamedTensor>& trained,
                        std::source_location where) {
  const auto device = trained.front().tensor.device();
  verify_count(group, trained.size(), device, where);
  std::vector<std::int64_t> own;
  for (const auto& parameter : trained) {
    const auto layout = layout_of(parameter.tensor);
    own.insert(own.end(), layout.begin(), layout.end());
  }
  const auto sent = at::tensor(own, at::TensorOptions().dtype(at::kLong)).to(device);
  group.broadcast(sent, 0, where);
  const auto first = values_in<std::int64_t>(sent);
  auto at = first.begin();
  for (const auto& parameter : trained) {
    const auto layout = layout_of(parameter.tensor);
    const std::vector<std::int64_t> expected(at, at + static_cast<std::ptrdiff_t>(layout.size()));
    at += static_cast<std::ptrdiff_t>(layout.size());
    if (layout == expected) continue;
    throw_error<DesyncError>(
        comm::about(group, {0}),
        "{}: DistributedDataParallel: the ranks' modules differ: sizes and strides of {} are {} on rank 0 "
        "and {} here. Build the same module on every rank",
        comm::state_of(group).whoami(), parameter.name, expected, layout);
  }
}

void broadcast_with_python(const ProcessGroup& group, int source, const std::vector<NamedTensor>& tensors,
                           std::source_location where) {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> all;
  for (const auto& item : tensors) all.push_back(item.tensor.detach());
  if (all.empty()) return;
  const auto buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(all, {kCoalescedBytes}));
  for (const auto& bucket : buckets) {
    std::vector<at::Tensor> together;
    for (const auto index : bucket) together.push_back(all[index]);
    const auto flat = flattened(together);
    group.broadcast(flat, source, where);
    if (group.rank() != source) unflatten_into(together, flat);
  }
}

std::vector<std::vector<std::size_t>> plan_of_rank_0(const ProcessGroup& group,
                                                     const std::vector<std::vector<std::size_t>>& own,
                                                     c10::Device device, std::source_location where) {
  std::vector<int> indices;
  std::vector<int> sizes;
  for (const auto& bucket : own) {
    for (const auto index : bucket) indices.push_back(static_cast<int>(index));
    sizes.push_back(static_cast<int>(bucket.size()));
  }
  indices.push_back(static_cast<int>(own.size()));
  const auto ints = at::TensorOptions().dtype(at::kInt);
  const auto sent = at::tensor(indices, ints).to(device);
  group.broadcast(sent, 0, where);
  indices = values_in<int>(sent);
  sizes.resize(static_cast<std::size_t>(indices.back()));
  const auto sent_sizes = at::tensor(sizes, ints).to(device);
  group.broadcast(sent_sizes, 0, where);
  std::vector<std::vector<std::size_t>> plan;
  auto at = indices.begin();
  for (const auto size : values_in<int>(sent_sizes)) {
    plan.emplace_back(at, at + size);
    at += size;
  }
  return plan;
}

}  // namespace lockstep::modules
