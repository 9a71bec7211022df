// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

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
/// PyTorch: `Dataset.__getitems__`.
template <typename D>
concept BatchDataset = requires(const D& dataset, const at::Tensor& indices) {
  { dataset.size() } -> std::convertible_to<std::int64_t>;
  dataset.get_batch(indices);
};

/// The type of a dataset's batches, which a loader over it yields.
template <BatchDataset Dataset>
using BatchOf = std::remove_cvref_t<decltype(std::declval<const Dataset&>().get_batch(at::Tensor()))>;

/// For get_batch() of your own dataset: throws ArgumentError unless `indices` is an int64 CPU tensor of shape
/// [batch] with values in 0 .. size-1.
void check_indices(const at::Tensor& indices, std::int64_t size);

/// Samples and targets in memory, of any dtype. Copies share the data. PyTorch: TensorDataset.
class TensorDataset {
 public:
  /// `data` [n, ...] and `target` [n, ...] on one device. Throws ArgumentError when their first dimensions
  /// differ.
  TensorDataset(at::Tensor data, at::Tensor target);
  /// A copy on `device`, which assembles batches there: only indices are then copied to it.
  TensorDataset to(const c10::Device& device) const { return {data_.to(device), target_.to(device)}; }

  std::int64_t size() const { return data_.size(0); }
  /// Throws ArgumentError when an index is out of range.
  Batch get_batch(const at::Tensor& indices) const;
  const at::Tensor& data() const { return data_; }
  const at::Tensor& target() const { return target_; }

 private:
  at::Tensor data_;
  at::Tensor target_;
};

/// (x - mean) / std per channel. One value for all channels, or one per channel. torchvision:
/// transforms.Normalize.
struct Normalize {
  std::vector<double> mean = {};
  std::vector<double> std = {};
};

/// Images stored as bytes and converted to float one batch at a time: x / 255, then the normalization, if
/// any. Bit-equal to torchvision's ToTensor and Normalize. Copies share the data.
class ImageDataset {
 public:
  /// `images` uint8 [n, height, width] (one channel) or [n, channels, height, width]; `targets` [n, ...] of
  /// any dtype; both on one device. Throws ArgumentError when their sizes differ, or when `normalize` does
  /// not match the channels or divides by zero.
  ImageDataset(at::Tensor images, at::Tensor targets, const std::optional<Normalize>& normalize = {});
  /// A copy on `device`, which assembles bit-equal batches there: only indices are then copied to it.
  ImageDataset to(const c10::Device& device) const;

  std::int64_t size() const { return images_.size(0); }
  /// float32 [batch, channels, height, width] and targets [batch, ...], newly allocated.
  /// Throws ArgumentError when an index is out of range.
  Batch get_batch(const at::Tensor& indices) const;
  /// uint8 [n, channels, height, width], as stored.
  const at::Tensor& images() const { return images_; }
  const at::Tensor& targets() const { return targets_; }

 private:
  Batch convert_on_cpu(const at::Tensor& indices) const;
  Batch convert_on_device(const at::Tensor& indices) const;

  at::Tensor images_;
  at::Tensor targets_;
  at::Tensor values_;  // float32 [channels, 256]: the float of each byte
};

}  // namespace lockstep::data
