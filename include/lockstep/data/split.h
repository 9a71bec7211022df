// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>

#include <lockstep/data/dataset.h>

namespace lockstep::data {

/// Some samples of a dataset, in the order of `indices`; an index may occur several times. Copies share the
/// dataset. PyTorch: torch.utils.data.Subset.
template <BatchDataset Dataset>
class Subset {
 public:
  /// `indices` int64 [n] on the CPU. Throws ArgumentError when one is not in 0 .. dataset.size()-1.
  Subset(Dataset dataset, at::Tensor indices)
      : Subset(std::make_shared<const Dataset>(std::move(dataset)), std::move(indices)) {}
  Subset(Dataset dataset, const std::vector<std::int64_t>& indices)
      : Subset(std::move(dataset), at::tensor(indices, at::kLong)) {}
  /// A subset that shares the dataset with others.
  Subset(std::shared_ptr<const Dataset> dataset, at::Tensor indices)
      : dataset_(std::move(dataset)), indices_(std::move(indices)) {
    check_indices(indices_, static_cast<std::int64_t>(dataset_->size()));
  }

  std::int64_t size() const { return indices_.size(0); }
  /// The dataset's batch of these samples. Throws ArgumentError when an index is out of range.
  auto get_batch(const at::Tensor& indices) const {
    check_indices(indices, size());
    return dataset_->get_batch(indices_.index_select(0, indices));
  }
  const Dataset& dataset() const { return *dataset_; }
  const at::Tensor& indices() const { return indices_; }

 private:
  std::shared_ptr<const Dataset> dataset_;
  at::Tensor indices_;
};

/// A number of samples (an integer) or a fraction of them (a floating-point number).
struct SplitSize {
  template <std::integral I>
  SplitSize(I samples) : value(static_cast<double>(samples)) {}  // NOLINT: implicit by design
  template <std::floating_point F>
  SplitSize(F fraction) : value(static_cast<double>(fraction)), is_fraction(true) {}  // NOLINT

  double value;
  bool is_fraction = false;
};

/// The indices of random_split() for a dataset of `size` samples: one int64 tensor per split.
std::vector<at::Tensor> random_split_indices(std::int64_t size, const std::vector<SplitSize>& lengths,
                                             const std::optional<at::Generator>& generator = {});

/// Splits a dataset at random into subsets without common samples: `random_split(dataset, {0.8, 0.2})` or
/// `random_split(dataset, {50'000, 10'000})`. Fractions add up to 1; each is rounded down, and the samples
/// that are left go to the first splits, one each. The indices of PyTorch's random_split for the same
/// generator state (default: LibTorch's default CPU generator). Logs a warning for a split that is empty
/// because of its fraction. Throws ArgumentError when lengths do not add up to the size of the dataset, or a
/// length is negative.
template <BatchDataset Dataset>
std::vector<Subset<Dataset>> random_split(Dataset dataset, const std::vector<SplitSize>& lengths,
                                          const std::optional<at::Generator>& generator = {}) {
  const auto shared = std::make_shared<const Dataset>(std::move(dataset));
  std::vector<Subset<Dataset>> subsets;
  for (auto& indices : random_split_indices(static_cast<std::int64_t>(shared->size()), lengths, generator)) {
    subsets.emplace_back(shared, std::move(indices));
  }
  return subsets;
}

struct StratifiedSplitOptions {
  /// Default: the samples that are not for training; 0.1 without a train_size.
  std::optional<SplitSize> test_size = {};
  /// Default: the samples that are not for the test.
  std::optional<SplitSize> train_size = {};
  std::int64_t seed = 0;  ///< 0 .. 2^32-1; scikit-learn: random_state
};

struct TrainTestIndices {
  at::Tensor train;  ///< int64
  at::Tensor test;   ///< int64
};

/// Splits samples at random so that every class has its share in both parts. `labels` [n] on the CPU, of an
/// integer dtype. Use the indices with Subset:
///
///     auto [train, test] = stratified_shuffle_split(mnist.targets(), {.test_size = 0.1, .seed = 42});
///     Subset train_set(mnist, train);
///
/// The indices of scikit-learn's StratifiedShuffleSplit(n_splits=1, random_state=seed), which are those of
/// train_test_split(stratify=labels) for the same sizes. Throws ArgumentError when a class has fewer than 2
/// samples, a part has fewer samples than there are classes, or a size or the seed is not possible.
TrainTestIndices stratified_shuffle_split(const at::Tensor& labels,
                                          const StratifiedSplitOptions& options = {});

struct TrainValSplitOptions {
  double val_fraction = 0.2;  ///< of the samples of each class, rounded down
  std::int64_t seed = 0;      ///< of Python's `random.seed`
};

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
TrainValIndices train_val_split_indices(const at::Tensor& targets, const TrainValSplitOptions& options = {});

/// A dataset that knows the targets of all samples, such as ImageFolder: int64 [n].
template <typename D>
concept DatasetWithTargets = BatchDataset<D> && requires(const D& dataset) {
  { dataset.targets() } -> std::convertible_to<at::Tensor>;
};

/// The subsets for training and for validation of train_val_split_indices().
template <DatasetWithTargets Dataset>
std::pair<Subset<Dataset>, Subset<Dataset>> train_val_split(Dataset dataset,
                                                            const TrainValSplitOptions& options = {}) {
  auto [train, val] = train_val_split_indices(dataset.targets(), options);
  const auto shared = std::make_shared<const Dataset>(std::move(dataset));
  return {Subset<Dataset>(shared, std::move(train)), Subset<Dataset>(shared, std::move(val))};
}

/// Writes class names by index, {"0": "daisy", "1": "dandelion"}, with the bytes of Python's
/// `json.dumps(..., indent=4)`. The file appears whole or not at all, also when several ranks write it.
/// Throws DataError naming the file, and ArgumentError for a name that is not valid UTF-8.
void write_class_indices(const std::filesystem::path& file, const std::vector<std::string>& classes);

/// The class names of such a file, by index. Throws DataError naming the file when it is missing, is not
/// such JSON, or lacks an index.
std::vector<std::string> read_class_indices(const std::filesystem::path& file);

}  // namespace lockstep::data
