// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <fmt/ranges.h>

#include <lockstep/data/subset.h>

#include "base/throw_error.h"

namespace lockstep::data {
namespace {

std::string describe(const at::Tensor& tensor) {
  return fmt::format("{} [{}] on {}", c10::toString(tensor.scalar_type()),
                     fmt::join(tensor.sizes().begin(), tensor.sizes().end(), ", "), tensor.device().str());
}

void check_row_counts(const std::vector<at::Tensor>& parts, const std::vector<ConcatIndex::Share>& shares) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto samples = shares[i].indices.numel();
    if (parts[i].dim() > 0 && parts[i].size(0) == samples) continue;
    throw_error<ArgumentError>(
        "ConcatDataset: dataset {} returned a tensor {} for {} samples; its first dimension should be the "
        "batch",
        shares[i].dataset, describe(parts[i]), samples);
  }
}

void check_equal_rows(const std::vector<at::Tensor>& parts, const std::vector<ConcatIndex::Share>& shares) {
  const auto& first = parts.front();
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const auto& part = parts[i];
    if (part.scalar_type() == first.scalar_type() && part.device() == first.device() &&
        part.sizes().slice(1) == first.sizes().slice(1)) {
      continue;
    }
    throw_error<ArgumentError>(
        "ConcatDataset: the batches of datasets {} and {} cannot be merged: {} and {} differ in more than "
        "the first dimension",
        shares.front().dataset, shares[i].dataset, describe(first), describe(part));
  }
}

at::Tensor merge_rows(const std::vector<at::Tensor>& parts, const std::vector<ConcatIndex::Share>& shares) {
  check_row_counts(parts, shares);
  check_equal_rows(parts, shares);
  auto sizes = parts.front().sizes().vec();
  sizes[0] = 0;
  for (const auto& share : shares) sizes[0] += share.indices.numel();
  auto merged = at::empty(sizes, parts.front().options());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    merged.index_copy_(0, shares[i].positions.to(merged.device()), parts[i]);
  }
  return merged;
}

}  // namespace

ConcatIndex::ConcatIndex(const std::vector<std::int64_t>& sizes) {
  if (sizes.empty()) throw ArgumentError("ConcatDataset: there are no datasets");
  std::int64_t end = 0;
  for (const auto size : sizes) ends_.push_back(end += size);
}

std::vector<ConcatIndex::Share> ConcatIndex::shares(const at::Tensor& indices) const {
  check_indices(indices, ends_.back());
  std::vector<std::vector<std::int64_t>> local(ends_.size());
  std::vector<std::vector<std::int64_t>> positions(ends_.size());
  const auto values = indices.accessor<std::int64_t, 1>();
  for (std::int64_t i = 0; i < values.size(0); ++i) {
    const auto dataset = static_cast<std::size_t>(std::ranges::upper_bound(ends_, values[i]) - ends_.begin());
    local[dataset].push_back(values[i] - (dataset == 0 ? 0 : ends_[dataset - 1]));
    positions[dataset].push_back(i);
  }
  std::vector<Share> shares;
  for (std::size_t dataset = 0; dataset < ends_.size(); ++dataset) {
    if (local[dataset].empty()) continue;
    shares.push_back({.dataset = dataset,
                      .indices = at::tensor(local[dataset], at::kLong),
                      .positions = at::tensor(positions[dataset], at::kLong)});
  }
  // An empty batch is one of the first dataset.
  if (shares.empty()) shares.push_back({.dataset = 0, .indices = indices, .positions = indices});
  return shares;
}

std::vector<at::Tensor> merge_batches(const std::vector<std::vector<at::Tensor>>& batches,
                                      const std::vector<ConcatIndex::Share>& shares) {
  const auto count = batches.front().size();
  for (std::size_t i = 1; i < batches.size(); ++i) {
    if (batches[i].size() == count) continue;
    throw_error<ArgumentError>(
        "ConcatDataset: batches of datasets {} and {} cannot be merged: one has {} tensors, the other {}",
        shares.front().dataset, shares[i].dataset, count, batches[i].size());
  }
  std::vector<at::Tensor> merged;
  for (std::size_t k = 0; k < count; ++k) {
    std::vector<at::Tensor> parts;
    for (const auto& batch : batches) parts.push_back(batch[k]);
    merged.push_back(merge_rows(parts, shares));
  }
  return merged;
}

}  // namespace lockstep::data
