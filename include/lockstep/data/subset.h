// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <source_location>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>

#include <lockstep/data/collate.h>
#include <lockstep/data/dataset.h>

namespace lockstep::data {

/// The part of a ConcatDataset that does not depend on types.
class ConcatIndex {
 public:
  /// The samples of a batch that belong to one dataset.
  struct Share {
    std::size_t dataset;   ///< number of the dataset
    at::Tensor indices;    ///< int64 [n], in the dataset
    at::Tensor positions;  ///< int64 [n], in the batch
  };

  /// Throws ArgumentError when there is no dataset.
  explicit ConcatIndex(const std::vector<std::int64_t>& sizes,
                       std::source_location where = std::source_location::current());
  /// The index after the last sample of each dataset.
  const std::vector<std::int64_t>& ends() const { return ends_; }
  /// The shares of a batch, in the order of the datasets; at least one. Throws ArgumentError when an index is
  /// out of range.
  std::vector<Share> shares(const at::Tensor& indices,
                            std::source_location where = std::source_location::current()) const;

 private:
  std::vector<std::int64_t> ends_;
};

/// Merges batches, given as the list of tensors of each, and returns the tensors of the merged batch. Throws
/// ArgumentError when the batches differ in their number of tensors, or in a dtype, device or shape.
std::vector<at::Tensor> merge_batches(const std::vector<std::vector<at::Tensor>>& batches,
                                      const std::vector<ConcatIndex::Share>& shares,
                                      std::source_location where = std::source_location::current());

/// Whether batches of a type are two tensors, a sample and its target: Batch, and a pair, tuple or array of them.
template <typename T>
inline constexpr bool is_sample_and_target =
    std::same_as<T, Batch> || std::same_as<T, std::pair<at::Tensor, at::Tensor>> ||
    std::same_as<T, std::tuple<at::Tensor, at::Tensor>> || std::same_as<T, std::array<at::Tensor, 2>>;

/// Datasets one behind the other: `ConcatDataset both({train, extra})`, `ConcatDataset both(train, extra)`, or
/// ConcatDataset(std::vector{a, b, c}). Those of different types are given one by one, as in the second form. They have one type of
/// batches, or batches that are all a sample and a target, which then have the type of the first dataset's. A batch
/// keeps the order of its indices; each dataset is asked once per batch. PyTorch: torch.utils.data.ConcatDataset.
template <typename BatchType>
class ConcatDataset {
  static_assert(
      is_mergeable_batch<BatchType>,
      "ConcatDataset cannot merge batches of this type. get_batch() should return a tensor, a pair, "
      "tuple, array, vector or optional of tensors, or a struct with visit_tensors() like "
      "lockstep::data::Batch.");

 public:
  /// Throws ArgumentError when `datasets` is empty.
  template <MapDataset Dataset>
  explicit ConcatDataset(std::vector<Dataset> datasets,
                         std::source_location where = std::source_location::current())
      : index_(sizes_of(datasets), where) {
    for (auto& dataset : datasets) add(std::move(dataset));
  }
  template <MapDataset Dataset>
  ConcatDataset(std::initializer_list<Dataset> datasets,
                std::source_location where = std::source_location::current())
      : ConcatDataset(std::vector<Dataset>(datasets), where) {}
  template <MapDataset First, MapDataset... Others>
    requires(sizeof...(Others) > 0)
  explicit ConcatDataset(First first, Others... others)
      : index_({size_of_dataset(first), size_of_dataset(others)...}) {
    add(std::move(first));
    (add(std::move(others)), ...);
  }

  /// The number of samples.
  std::int64_t size() const { return index_.ends().back(); }
  /// PyTorch: `cumulative_sizes`.
  const std::vector<std::int64_t>& cumulative_sizes() const { return index_.ends(); }
  /// Throws ArgumentError when an index is out of range, and when the batches of two datasets differ in their
  /// number of tensors, or in a dtype, device or shape.
  BatchType get_batch(const at::Tensor& indices,
                      std::source_location where = std::source_location::current()) const {
    const auto shares = index_.shares(indices, where);
    std::vector<BatchType> batches;
    for (const auto& share : shares) batches.push_back(get_batch_of_[share.dataset](share.indices, where));
    auto merged = std::move(batches.front());
    if (shares.size() > 1) {
      std::vector<std::vector<at::Tensor>> parts{tensors_of(merged)};
      for (std::size_t i = 1; i < batches.size(); ++i) parts.push_back(tensors_of(batches[i]));
      replace_tensors(merged, merge_batches(parts, shares, where));
    }
    return merged;
  }

 private:
  template <typename Dataset>
  static std::vector<std::int64_t> sizes_of(const std::vector<Dataset>& datasets) {
    std::vector<std::int64_t> sizes;
    for (const auto& dataset : datasets) sizes.push_back(size_of_dataset(dataset));
    return sizes;
  }

  template <typename Dataset>
  void add(Dataset dataset) {
    using Given = BatchOf<Dataset>;
    constexpr bool converts = is_sample_and_target<Given> && is_sample_and_target<BatchType>;
    static_assert(std::same_as<Given, BatchType> || converts,
                  "The datasets of a ConcatDataset should have the same type of batches.");
    get_batch_of_.push_back([dataset = std::make_shared<Dataset>(std::move(dataset))](
                                const at::Tensor& indices, std::source_location where) {
      auto batch = get_batch_at(*dataset, indices, where);
      if constexpr (std::same_as<Given, BatchType>) {
        return batch;
      } else {
        auto& [data, target] = batch;
        return BatchType{std::move(data), std::move(target)};
      }
    });
  }

  ConcatIndex index_;
  std::vector<std::function<BatchType(const at::Tensor&, std::source_location)>> get_batch_of_;
};

template <MapDataset Dataset>
ConcatDataset(std::vector<Dataset>) -> ConcatDataset<BatchOf<Dataset>>;
template <MapDataset Dataset>
ConcatDataset(std::initializer_list<Dataset>) -> ConcatDataset<BatchOf<Dataset>>;
template <MapDataset First, MapDataset... Others>
  requires(sizeof...(Others) > 0)
ConcatDataset(First, Others...) -> ConcatDataset<BatchOf<First>>;

/// Some samples of a dataset, in the order of `indices`; an index may occur several times. Copies share the
/// dataset. PyTorch: torch.utils.data.Subset.
template <MapDataset Dataset>
class Subset {
 public:
  /// `indices` int64 [n] on the CPU. Throws ArgumentError when one is not in 0 .. dataset.size()-1.
  Subset(Dataset dataset, at::Tensor indices, std::source_location where = std::source_location::current())
      : Subset(std::make_shared<Dataset>(std::move(dataset)), std::move(indices), where) {}
  Subset(Dataset dataset, std::initializer_list<std::int64_t> indices,
         std::source_location where = std::source_location::current())
      : Subset(std::move(dataset), std::vector<std::int64_t>(indices), where) {}
  template <std::integral Index>
  Subset(Dataset dataset, const std::vector<Index>& indices,
         std::source_location where = std::source_location::current())
      : Subset(std::move(dataset),
               at::tensor(std::vector<std::int64_t>(indices.begin(), indices.end()), at::kLong), where) {}
  /// A subset that shares the dataset with others. A dataset whose get() is not const takes a
  /// std::shared_ptr<Dataset>, others take a std::shared_ptr<const Dataset> too.
  Subset(SharedDataset<Dataset> dataset, at::Tensor indices,
         std::source_location where = std::source_location::current())
      : dataset_(std::move(dataset)), indices_(std::move(indices)) {
    check_indices(indices_, size_of_dataset(*dataset_), where);
  }

  /// The number of samples.
  std::int64_t size() const { return indices_.size(0); }
  /// The batch of these samples that a loader over the dataset makes. Throws ArgumentError when an index is out
  /// of range.
  BatchOf<Dataset> get_batch(const at::Tensor& indices,
                             std::source_location where = std::source_location::current()) const {
    check_indices(indices, size(), where);
    return get_batch_at(*dataset_, indices_.index_select(0, indices), where);
  }
  /// One sample, as the dataset's: `auto [x, y] = subset[0];`. Throws ArgumentError when the index is out of range.
  auto operator[](SampleIndex index) const
    requires(SampleDataset<Dataset> || requires(const Dataset& dataset) { dataset[index]; })
  {
    const auto in_subset = at::tensor({index.value}, at::kLong);
    check_indices(in_subset, size(), index.place);
    const SampleIndex chosen(indices_[index.value].template item<std::int64_t>(), index.place);
    if constexpr (SampleDataset<Dataset>) {
      return get_sample(*dataset_, static_cast<std::size_t>(chosen.value));
    } else {
      return (*dataset_)[chosen];
    }
  }
  /// The dataset of which it is a part.
  const Dataset& dataset() const { return *dataset_; }
  /// The samples of the dataset, int64 [size()].
  const at::Tensor& indices() const { return indices_; }

 private:
  std::shared_ptr<const Dataset> dataset_;
  at::Tensor indices_;
};

template <typename Dataset>
  requires MapDataset<std::remove_const_t<Dataset>>
Subset(std::shared_ptr<Dataset>, at::Tensor) -> Subset<std::remove_const_t<Dataset>>;

/// A number of samples (an integer) or a fraction of them (a floating-point number).
struct SplitSize {
  template <std::integral I>
  SplitSize(I samples) : value(static_cast<double>(samples)) {}  // NOLINT: implicit by design
  template <std::floating_point F>
  SplitSize(F fraction) : value(static_cast<double>(fraction)), is_fraction(true) {}  // NOLINT

  double value;              ///< a number of samples, or a share in (0, 1)
  bool is_fraction = false;  ///< whether the value is a share
};

/// Arguments of random_split().
struct RandomSplitOptions {
  std::optional<at::Generator> generator = {};  ///< default: LibTorch's default CPU generator
};

/// The indices of random_split() for a dataset of `size` samples: one int64 tensor per split.
std::vector<at::Tensor> random_split_indices(std::int64_t size, const std::vector<SplitSize>& lengths,
                                             const std::optional<at::Generator>& generator = {},
                                             std::source_location where = std::source_location::current());

/// Splits a dataset at random into subsets without common samples, one for each number of a braced list:
///
///     auto [train, val] = random_split(dataset, {0.8, 0.2});
///     auto [first, second] = random_split(dataset, {50'000, 10'000});
///
/// Fractions add up to 1; each is rounded down, and the samples that are left go to the first splits, one each.
/// The indices of PyTorch's random_split for the same generator state (default: LibTorch's default CPU
/// generator). Logs a warning for a split that is empty because of its fraction. Throws ArgumentError when
/// lengths do not add up to the size of the dataset, or a length is negative.
template <MapDataset Dataset, std::size_t parts>
std::array<Subset<Dataset>, parts> random_split(
    Dataset dataset, const SplitSize (&lengths)[parts],  // NOLINT: an array has the number of a braced list
    const std::optional<at::Generator>& generator = {},
    std::source_location where = std::source_location::current()) {
  const auto shared = std::make_shared<Dataset>(std::move(dataset));
  const auto indices = random_split_indices(
      size_of_dataset(*shared), std::vector<SplitSize>(lengths, lengths + parts), generator, where);
  return [&]<std::size_t... i>(std::index_sequence<i...>) {
    return std::array<Subset<Dataset>, parts>{Subset<Dataset>(shared, indices[i])...};
  }(std::make_index_sequence<parts>());
}

/// With the generator by its name: `random_split(dataset, {0.8, 0.2}, {.generator = generator})`.
template <MapDataset Dataset, std::size_t parts>
std::array<Subset<Dataset>, parts> random_split(
    Dataset dataset, const SplitSize (&lengths)[parts],  // NOLINT: an array has the number of a braced list
    const RandomSplitOptions& options, std::source_location where = std::source_location::current()) {
  return random_split(std::move(dataset), lengths, options.generator, where);
}

/// Splits a dataset as random_split() with a braced list does, into a number of subsets that is known at run
/// time.
template <MapDataset Dataset, std::convertible_to<SplitSize> Length>
std::vector<Subset<Dataset>> random_split(Dataset dataset, const std::vector<Length>& lengths,
                                          const std::optional<at::Generator>& generator = {},
                                          std::source_location where = std::source_location::current()) {
  const auto shared = std::make_shared<Dataset>(std::move(dataset));
  std::vector<Subset<Dataset>> subsets;
  for (auto& indices :
       random_split_indices(size_of_dataset(*shared), std::vector<SplitSize>(lengths.begin(), lengths.end()),
                            generator, where)) {
    subsets.emplace_back(shared, std::move(indices));
  }
  return subsets;
}

/// With the generator by its name: `random_split(dataset, lengths, {.generator = generator})`.
template <MapDataset Dataset, std::convertible_to<SplitSize> Length>
std::vector<Subset<Dataset>> random_split(Dataset dataset, const std::vector<Length>& lengths,
                                          const RandomSplitOptions& options,
                                          std::source_location where = std::source_location::current()) {
  return random_split(std::move(dataset), lengths, options.generator, where);
}

/// Options of stratified_shuffle_split().
struct StratifiedSplitOptions {
  /// Default: the samples that are not for training; 0.1 without a train_size.
  std::optional<SplitSize> test_size = {};
  /// Default: the samples that are not for the test.
  std::optional<SplitSize> train_size = {};
  std::int64_t seed = 0;  ///< 0 .. 2^32-1; scikit-learn: random_state
};

/// The result of stratified_shuffle_split().
struct TrainTestIndices {
  at::Tensor train;  ///< int64
  at::Tensor test;   ///< int64
};

/// Splits samples at random so that every class has its share in both parts. `labels` [n] on the CPU, of an
/// integer dtype. Use the indices with Subset:
///
///     auto [train, test] = stratified_shuffle_split(dataset.targets(), {.test_size = 0.1, .seed = 42});
///     Subset train_set(dataset, train);
///
/// The indices of scikit-learn's StratifiedShuffleSplit(n_splits=1, random_state=seed), which are those of
/// train_test_split(stratify=labels) for the same sizes. Throws ArgumentError when a class has fewer than 2
/// samples, a part has fewer samples than there are classes, or a size or the seed is not possible.
TrainTestIndices stratified_shuffle_split(const at::Tensor& labels,
                                          const StratifiedSplitOptions& options = {},
                                          std::source_location where = std::source_location::current());

/// Options of train_val_split_indices().
struct TrainValSplitOptions {
  double val_fraction = 0.2;  ///< of the samples of each class, rounded down
  std::int64_t seed = 0;      ///< of Python's `random.seed`
};

/// The result of train_val_split_indices().
struct TrainValIndices {
  at::Tensor train;  ///< int64
  at::Tensor val;    ///< int64
};

/// Draws a part of each class for validation, as classification tutorials do in Python: `random.seed(seed)`,
/// then for each class in ascending order `random.sample(images, k=int(len(images) * val_fraction))`. Both
/// results have the classes in ascending order and the samples of a class in the order of `targets`. Use the
/// indices with Subset when the two parts have different transforms:
///
///     auto [train, val] = train_val_split_indices(train_images.targets());
///     Subset train_set(train_images, train);
///     Subset val_set(val_images, val);
///
/// `targets` [n] on the CPU, of an integer dtype. The choice is that of CPython for the same lists. The files
/// of an ImageFolder are sorted; a tutorial that takes the order of os.listdir() has another split. Throws
/// ArgumentError when val_fraction is not between 0 and 1.
TrainValIndices train_val_split_indices(const at::Tensor& targets, const TrainValSplitOptions& options = {},
                                        std::source_location where = std::source_location::current());

/// A dataset that knows the targets of all samples, such as ImageFolder: int64 [n].
template <typename D>
concept DatasetWithTargets = MapDataset<D> && requires(const D& dataset) {
  { dataset.targets() } -> std::convertible_to<at::Tensor>;
};

/// The subsets for training and for validation of train_val_split_indices().
template <DatasetWithTargets Dataset>
std::pair<Subset<Dataset>, Subset<Dataset>> train_val_split(
    Dataset dataset, const TrainValSplitOptions& options = {},
    std::source_location where = std::source_location::current()) {
  auto [train, val] = train_val_split_indices(dataset.targets(), options, where);
  const auto shared = std::make_shared<Dataset>(std::move(dataset));
  return {Subset<Dataset>(shared, std::move(train)), Subset<Dataset>(shared, std::move(val))};
}

}  // namespace lockstep::data
