// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <source_location>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/transforms/transforms.h>

namespace lockstep::data {

/// The batch type of TensorDataset, ImageDataset and MNIST: `auto& [images, labels] = batch;`.
struct Batch {
  at::Tensor data;    ///< [batch, ...]
  at::Tensor target;  ///< [batch, ...]

  /// Makes Batch a PyTree.
  template <typename F>
  void visit_tensors(F&& f) {
    if (data.defined()) f(data);
    if (target.defined()) f(target);
  }
};

/// A dataset that returns whole batches. `get_batch` takes an int64 CPU tensor of shape [batch] with values
/// in 0 .. size()-1 and may return any type, which the loader then yields. A loader with workers calls
/// get_batch() from several threads, so it must be thread-safe; a get_batch() that only reads the dataset is.
/// Where get_batch() takes a std::source_location behind the indices, as those of Lockstep's datasets do, a loader
/// passes the line that made the loader, for messages. PyTorch: `Dataset.__getitems__`.
template <typename D>
concept BatchDataset = requires(const D& dataset, const at::Tensor& indices) {
  { dataset.size() } -> std::convertible_to<std::int64_t>;
  dataset.get_batch(indices);
};

/// The part of an iterable dataset that one pass on one rank reads.
struct StreamShare {
  int rank = 0;            ///< of the current world; 0 with DataLoaderOptions::distributed = false
  int num_replicas = 1;    ///< ranks that share the data
  std::int64_t epoch = 0;  ///< the epoch of this pass
};

/// A dataset without random access, such as a log. `iter(share)` starts a pass and returns a pointer to a
/// stream whose `next()` returns a std::optional sample, empty at the end. The dataset decides which samples
/// belong to the share: for example, every num_replicas-th. An exception of next() ends the pass.
///
/// The workers of a loader take turns at next(), in the order of the batches, so batches do not depend on
/// their number. `collate(std::vector<Sample>) const` makes a batch of any type, on several threads; the
/// default stacks the tensors of the samples. A resumed pass reads the samples before its position again, or
/// calls the stream's `skip(std::int64_t samples)`, possibly with more than there are. Random numbers in
/// next() should come from a generator of the stream, seeded from share.epoch. PyTorch: IterableDataset,
/// with one copy of it a worker.
template <typename D>
concept IterableDataset = !BatchDataset<D> && requires(const D& dataset, const StreamShare& share) {
  { dataset.iter(share)->next().has_value() } -> std::convertible_to<bool>;
};

/// A dataset that returns single samples: `size()` and `get(index)`, as classes derived from
/// torch::data::Dataset have. The loader makes the batches with `collate(std::vector<Sample>) const` of the
/// dataset or, by default, stacks tensors and numbers: a sample is a tensor, a number, a tuple or pair of them, or
/// a struct with `data` and `target`, such as torch::data::Example, whose batch is a Batch. Integers become int64.
/// A loader with workers calls get() from several threads, so it must be thread-safe, with or without `const`. A
/// dataset with get_batch() is faster. PyTorch: `Dataset.__getitem__`, with default_collate.
template <typename D>
concept SampleDataset = !BatchDataset<D> && !IterableDataset<D> && requires(D& dataset, std::size_t index) {
  dataset.size();
  dataset.get(index);
};

/// A dataset with random access, of batches or of single samples. PyTorch: a map-style dataset.
template <typename D>
concept MapDataset = BatchDataset<D> || SampleDataset<D>;

/// A dataset of a DataLoader.
template <typename D>
concept LoadableDataset = MapDataset<D> || IterableDataset<D>;

/// One sample and its target. PyTorch: `torch::data::Example`.
struct Example {
  at::Tensor data;    ///< without the dimension of the batch
  at::Tensor target;  ///< without the dimension of the batch
};

/// The index of a sample in `dataset[index]`; its error names the line of the program.
struct SampleIndex {
  template <std::integral Index>
  SampleIndex(Index index, std::source_location where = std::source_location::current())  // NOLINT: implicit
      : value(static_cast<std::int64_t>(index)), place(where) {}

  std::int64_t value;          ///< 0 .. size()-1
  std::source_location place;  ///< of the caller
};

/// A base of datasets that return single samples, for a class that derives from it as in PyTorch:
///
///     class Squares : public data::Dataset {
///      public:
///       data::Example get(std::size_t i) override { return {at::scalar_tensor(i), at::scalar_tensor(i * i)}; }
///       std::size_t size() const override { return 100; }
///     };
///
/// A class needs no base: see SampleDataset, for samples of other types, and BatchDataset, which is faster.
/// PyTorch: `torch.utils.data.Dataset`.
class Dataset {
 public:
  virtual ~Dataset() = default;
  /// Sample `index`, 0 .. size()-1. A loader with workers calls it from several threads. PyTorch: `__getitem__`.
  virtual Example get(std::size_t index) = 0;
  /// The number of samples. PyTorch: `__len__`.
  virtual std::size_t size() const = 0;
};

/// For get_batch() of your own dataset: throws ArgumentError unless `indices` is an int64 CPU tensor of shape
/// [batch] with values in 0 .. size-1.
void check_indices(const at::Tensor& indices, std::int64_t size,
                   std::source_location where = std::source_location::current());

/// A function of one target: `std::int64_t(std::int64_t)` for classes, or `at::Tensor(const at::Tensor&)`.
class TargetTransform {
 public:
  TargetTransform() = default;
  template <typename F>
    requires(std::is_invocable_r_v<at::Tensor, const F&, const at::Tensor&> ||
             std::is_invocable_r_v<std::int64_t, const F&, std::int64_t>)
  TargetTransform(F function) {  // NOLINT: implicit by design
    if constexpr (std::is_invocable_r_v<at::Tensor, const F&, const at::Tensor&>) {
      function_ = std::move(function);
    } else {
      function_ = of_class(std::move(function));
    }
  }

  explicit operator bool() const { return static_cast<bool>(function_); }
  /// `target`: without the dimension of the batch; a class is an int64 scalar tensor. Throws ArgumentError
  /// when the function takes a class and the target is not one integer.
  at::Tensor operator()(const at::Tensor& target) const { return function_(target); }

 private:
  using Function = std::function<at::Tensor(const at::Tensor&)>;
  static Function of_class(std::function<std::int64_t(std::int64_t)> function);

  Function function_{};
};

/// The functions that a dataset applies to each sample before it makes a batch. With a loader that has an
/// augmentation_seed, the transform draws from the generator of the sample. torchvision: the arguments
/// `transform` and `target_transform`.
struct SampleTransforms {
  std::optional<transforms::Transform> transform = {};  ///< applied to each image
  TargetTransform target_transform = {};                ///< applied to each target
};

/// Samples and targets in memory, of any dtype. Copies share the data. PyTorch: TensorDataset.
class TensorDataset {
 public:
  /// `data` [n, ...] and `target` [n, ...] on one device. Throws ArgumentError when their first dimensions
  /// differ.
  TensorDataset(at::Tensor data, at::Tensor target, SampleTransforms transforms = {},
                std::source_location where = std::source_location::current());
  /// Does not compile: a batch has samples and targets.
  template <std::same_as<at::Tensor>... Others>
    requires(sizeof...(Others) != 1)
  explicit TensorDataset(const at::Tensor& /*data*/, const Others&... /*others*/) {
    static_assert(sizeof...(Others) == 1,
                  "TensorDataset takes samples and targets; for another number of tensors write a class with "
                  "size() and get_batch(indices), which returns a std::tuple");
  }
  /// A copy on `device`, which assembles batches there: only indices are then copied to it.
  TensorDataset to(const c10::Device& device) const {
    return {data_.to(device), target_.to(device), transforms_};
  }

  /// The number of samples.
  std::int64_t size() const { return data_.size(0); }
  /// Throws ArgumentError when an index is out of range or the shapes of transformed samples differ.
  Batch get_batch(const at::Tensor& indices,
                  std::source_location where = std::source_location::current()) const;
  /// One sample: `auto [x, y] = dataset[0];`. Throws as get_batch() does. PyTorch: `dataset[0]`.
  Example operator[](SampleIndex index) const;
  /// All data, [size(), ...].
  const at::Tensor& data() const { return data_; }
  /// All targets, [size(), ...].
  const at::Tensor& target() const { return target_; }

 private:
  at::Tensor data_;
  at::Tensor target_;
  SampleTransforms transforms_;
};

/// Options of ImageDataset.
struct ImageDatasetOptions {
  /// Applied to each batch after x / 255. Excludes `transform`.
  std::optional<transforms::Normalize> normalize = {};
  /// Applied to each image, uint8 [channels, height, width], in place of the conversion to float: end it with
  /// ToTensor and Normalize. Default: x / 255.
  std::optional<transforms::Transform> transform = {};
  TargetTransform target_transform = {};  ///< applied to each target
};

/// Images stored as bytes and converted to float one batch at a time: x / 255, then the normalization, if
/// any. Bit-equal to torchvision's ToTensor and Normalize. With a transform, each image is transformed
/// instead. Copies share the data.
class ImageDataset {
 public:
  /// `images` uint8 [n, height, width] (one channel) or [n, channels, height, width]; `targets` [n, ...] of
  /// any dtype; both on one device. Throws ArgumentError when their sizes differ, when `normalize` does not
  /// match the channels or divides by zero, and for `normalize` with `transform`.
  ImageDataset(at::Tensor images, at::Tensor targets, const ImageDatasetOptions& options = {},
               std::source_location where = std::source_location::current());
  /// A copy on `device`, which assembles bit-equal batches there: only indices are then copied to it.
  ImageDataset to(const c10::Device& device) const;

  /// The number of samples.
  std::int64_t size() const { return images_.size(0); }
  /// float32 [batch, channels, height, width], or what the transform makes of the images, and targets
  /// [batch, ...], newly allocated. Throws ArgumentError when an index is out of range or the shapes of
  /// transformed samples differ.
  Batch get_batch(const at::Tensor& indices,
                  std::source_location where = std::source_location::current()) const;
  /// One sample: `auto [x, y] = dataset[0];`. Throws as get_batch() does. PyTorch: `dataset[0]`.
  Example operator[](SampleIndex index) const;
  /// uint8 [n, channels, height, width], as stored.
  const at::Tensor& images() const { return images_; }
  /// The targets of all samples, int64 [size()].
  const at::Tensor& targets() const { return targets_; }

 private:
  at::Tensor images_of(const at::Tensor& chosen) const;
  at::Tensor convert_on_cpu(const at::Tensor& indices) const;
  at::Tensor convert_on_device(const at::Tensor& chosen) const;

  at::Tensor images_;
  at::Tensor targets_;
  at::Tensor values_;  // float32 [channels, 256]: the float of each byte
  SampleTransforms transforms_;
};

}  // namespace lockstep::data
