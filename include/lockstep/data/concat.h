// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/data/dataset.h>
#include <lockstep/device/pytree.h>

namespace lockstep::data {

/// Whether batches of a type can be merged: a tensor, a pair, tuple, array, vector or optional of such types,
/// or a struct with visit_tensors(), such as Batch. Every tensor's first dimension is the batch.
template <typename T>
inline constexpr bool is_mergeable_batch = HasVisitTensors<T>;
template <>
inline constexpr bool is_mergeable_batch<at::Tensor> = true;
template <typename T>
inline constexpr bool is_mergeable_batch<std::optional<T>> = is_mergeable_batch<T>;
template <typename T>
inline constexpr bool is_mergeable_batch<std::vector<T>> = is_mergeable_batch<T>;
template <typename T, std::size_t N>
inline constexpr bool is_mergeable_batch<std::array<T, N>> = is_mergeable_batch<T>;
template <typename First, typename Second>
inline constexpr bool is_mergeable_batch<std::pair<First, Second>> =
    is_mergeable_batch<First> && is_mergeable_batch<Second>;
template <typename... Ts>
inline constexpr bool is_mergeable_batch<std::tuple<Ts...>> = (is_mergeable_batch<Ts> && ...);

/// The tensors of a batch, in the order of visit_tensors().
template <typename BatchType>
std::vector<at::Tensor> tensors_of(BatchType& batch) {
  std::vector<at::Tensor> tensors;
  visit_tensors(batch, [&tensors](at::Tensor& tensor) { tensors.push_back(tensor); });
  return tensors;
}

/// Replaces the tensors of a batch; `tensors` has as many as the batch.
template <typename BatchType>
void replace_tensors(BatchType& batch, std::vector<at::Tensor> tensors) {
  auto next = tensors.begin();
  visit_tensors(batch, [&next](at::Tensor& tensor) { tensor = std::move(*next++); });
}

/// The part of a ConcatDataset that does not depend on types.
class ConcatIndex {
 public:
  /// The samples of a batch that belong to one dataset.
  struct Share {
    std::size_t dataset;
    at::Tensor indices;    ///< int64 [n], in the dataset
    at::Tensor positions;  ///< int64 [n], in the batch
  };

  /// Throws ArgumentError when there is no dataset.
  explicit ConcatIndex(const std::vector<std::int64_t>& sizes);
  const std::vector<std::int64_t>& ends() const { return ends_; }
  /// The shares of a batch, in the order of the datasets; at least one. Throws ArgumentError when an index is
  /// out of range.
  std::vector<Share> shares(const at::Tensor& indices) const;

 private:
  std::vector<std::int64_t> ends_;
};

/// Merges batches, given as the list of tensors of each, and returns the tensors of the merged batch. Throws
/// ArgumentError when the batches differ in their number of tensors, or in a dtype, device or shape.
std::vector<at::Tensor> merge_batches(const std::vector<std::vector<at::Tensor>>& batches,
                                      const std::vector<ConcatIndex::Share>& shares);

/// Datasets one behind the other: `ConcatDataset both(train, extra)`, or ConcatDataset(std::vector{a, b, c}).
/// They may have different types but one type of batches. A batch keeps the order of its indices; each
/// dataset is asked once per batch. PyTorch: torch.utils.data.ConcatDataset.
template <typename BatchType>
class ConcatDataset {
  static_assert(
      is_mergeable_batch<BatchType>,
      "ConcatDataset cannot merge batches of this type. get_batch() should return a tensor, a pair, "
      "tuple, array, vector or optional of tensors, or a struct with visit_tensors() like "
      "lockstep::data::Batch.");

 public:
  /// Throws ArgumentError when `datasets` is empty.
  template <BatchDataset Dataset>
  explicit ConcatDataset(std::vector<Dataset> datasets) : index_(sizes_of(datasets)) {
    for (auto& dataset : datasets) add(std::move(dataset));
  }
  template <BatchDataset First, BatchDataset... Others>
    requires(sizeof...(Others) > 0)
  explicit ConcatDataset(First first, Others... others)
      : index_({static_cast<std::int64_t>(first.size()), static_cast<std::int64_t>(others.size())...}) {
    add(std::move(first));
    (add(std::move(others)), ...);
  }

  std::int64_t size() const { return index_.ends().back(); }
  /// PyTorch: `cumulative_sizes`.
  const std::vector<std::int64_t>& cumulative_sizes() const { return index_.ends(); }
  /// Throws ArgumentError when an index is out of range, and when the batches of two datasets differ in their
  /// number of tensors, or in a dtype, device or shape.
  BatchType get_batch(const at::Tensor& indices) const {
    const auto shares = index_.shares(indices);
    std::vector<BatchType> batches;
    for (const auto& share : shares) batches.push_back(get_batch_of_[share.dataset](share.indices));
    auto merged = std::move(batches.front());
    if (shares.size() > 1) {
      std::vector<std::vector<at::Tensor>> parts{tensors_of(merged)};
      for (std::size_t i = 1; i < batches.size(); ++i) parts.push_back(tensors_of(batches[i]));
      replace_tensors(merged, merge_batches(parts, shares));
    }
    return merged;
  }

 private:
  template <typename Dataset>
  static std::vector<std::int64_t> sizes_of(const std::vector<Dataset>& datasets) {
    std::vector<std::int64_t> sizes;
    for (const auto& dataset : datasets) sizes.push_back(static_cast<std::int64_t>(dataset.size()));
    return sizes;
  }

  template <typename Dataset>
  void add(Dataset dataset) {
    static_assert(std::same_as<BatchOf<Dataset>, BatchType>,
                  "The datasets of a ConcatDataset should have the same type of batches.");
    get_batch_of_.push_back([dataset = std::make_shared<const Dataset>(std::move(dataset))](
                                const at::Tensor& indices) { return dataset->get_batch(indices); });
  }

  ConcatIndex index_;
  std::vector<std::function<BatchType(const at::Tensor&)>> get_batch_of_;
};

template <BatchDataset Dataset>
ConcatDataset(std::vector<Dataset>) -> ConcatDataset<BatchOf<Dataset>>;
template <BatchDataset First, BatchDataset... Others>
  requires(sizeof...(Others) > 0)
ConcatDataset(First, Others...) -> ConcatDataset<BatchOf<First>>;

}  // namespace lockstep::data
