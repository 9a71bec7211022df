// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::data {

/// What the datasets here yield: `auto& [images, labels] = batch;` takes it apart.
struct Batch {
  at::Tensor data;    ///< [batch, ...]
  at::Tensor target;  ///< [batch, ...]

  /// How the loader finds the tensors; see TensorVisitor.
  template <typename F>
  void visit_tensors(F&& f) {
    if (data.defined()) f(data);
    if (target.defined()) f(target);
  }
};

/// A dataset that gives a whole batch at once. `get_batch` takes an int64 CPU tensor of shape [batch] with
/// values in 0 .. size()-1 and may return any type; a loader yields that type. A loader with workers calls
/// get_batch() from several threads at once; it must then be safe to, as it is when it only reads the
/// dataset.
template <typename D>
concept BatchDataset = requires(const D& dataset, const at::Tensor& indices) {
  { dataset.size() } -> std::convertible_to<std::int64_t>;
  dataset.get_batch(indices);
};

/// Samples and targets in memory, of any dtype. Copying it copies no data. PyTorch: TensorDataset.
class TensorDataset {
 public:
  /// `data` [n, ...] and `target` [n, ...] on one device; throws ArgumentError when their first dimensions
  /// differ.
  TensorDataset(at::Tensor data, at::Tensor target);
  /// The same samples on `device`, where batches are then put together: only indices are copied there.
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

/// (x - mean) / std for each channel. One value, or one for each channel. torchvision: transforms.Normalize.
struct Normalize {
  std::vector<double> mean = {};
  std::vector<double> std = {};
};

/// Images kept as bytes and turned into floats a batch at a time: x / 255, then the normalization, if any.
/// Bit-equal to torchvision's ToTensor and Normalize. Copying it copies no data.
class ImageDataset {
 public:
  /// `images` uint8 [n, height, width] (one channel) or [n, channels, height, width]; `targets` [n, ...] of
  /// any dtype; both on one device. Throws ArgumentError when they do not fit each other, or `normalize` does
  /// not fit the channels or divides by zero.
  ImageDataset(at::Tensor images, at::Tensor targets, const std::optional<Normalize>& normalize = {});
  /// The same images on `device`, where batches are then put together, to the same bits: only indices are
  /// copied there.
  ImageDataset to(const c10::Device& device) const;

  std::int64_t size() const { return images_.size(0); }
  /// float32 [batch, channels, height, width] and targets [batch, ...], newly allocated.
  /// Throws ArgumentError when an index is out of range.
  Batch get_batch(const at::Tensor& indices) const;
  /// uint8 [n, channels, height, width], as stored.
  const at::Tensor& images() const { return images_; }
  const at::Tensor& targets() const { return targets_; }

 private:
  Batch convert_here(const at::Tensor& indices) const;
  Batch convert_on_device(const at::Tensor& indices) const;

  at::Tensor images_;
  at::Tensor targets_;
  at::Tensor values_;  // float32 [channels, 256]: what each byte becomes
};

}  // namespace lockstep::data
