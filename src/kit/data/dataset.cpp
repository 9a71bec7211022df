// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <string_view>

#include <lockstep/data/dataset.h>
#include <lockstep/device/device.h>

#include "base/caller_place.h"
#include "base/throw_error.h"
#include "data/sample_batches.h"

namespace lockstep::data {
namespace {

constexpr std::int64_t kByteValues = 256;

void check_pair(std::string_view dataset, const at::Tensor& data, const at::Tensor& target) {
  if (!data.defined() || !target.defined() || data.device() != target.device()) {
    throw_error<ArgumentError>("{}: samples and targets should be defined tensors on the same device",
                               dataset);
  }
  if (data.dim() == 0 || target.dim() == 0 || data.size(0) != target.size(0)) {
    throw_error<ArgumentError>(
        "{}: samples of shape {} and targets of shape {} differ in their first dimension", dataset,
        c10::str(data.sizes()), c10::str(target.sizes()));
  }
}

// Copies indices to the device of the samples, asynchronously.
at::Tensor indices_for(const at::Tensor& samples, const at::Tensor& indices) {
  if (samples.is_cpu()) return indices;
  return pin_memory(indices).to(samples.device(), at::kLong, /*non_blocking=*/true);
}

at::Tensor as_image_storage(const at::Tensor& images) {
  if (images.scalar_type() != at::kByte || images.dim() < 3 || images.dim() > 4) {
    throw_error<ArgumentError>(
        "ImageDataset: images should be uint8 [n, height, width] or [n, channels, height, width], but they "
        "are {} {}",
        c10::toString(images.scalar_type()), c10::str(images.sizes()));
  }
  return (images.dim() == 3 ? images.unsqueeze(1) : images).contiguous();
}

// One value broadcasts to all channels, as in torchvision.
at::Tensor channel_values(std::string_view name, const std::vector<double>& values, std::int64_t channels) {
  if (values.size() != 1 && static_cast<std::int64_t>(values.size()) != channels) {
    throw_error<ArgumentError>("Normalize: {} has {} values for images of {} channels", name, values.size(),
                               channels);
  }
  return at::tensor(at::ArrayRef<double>(values), at::kFloat).view({-1, 1});
}

// LibTorch's kernels convert each of the 256 byte values once. A batch is then one table look-up per pixel,
// bit-equal to converting it with those kernels.
at::Tensor byte_values(std::int64_t channels, const std::optional<transforms::Normalize>& normalize) {
  auto values = at::arange(kByteValues, at::kFloat).div(255).repeat({channels, 1});
  if (!normalize) return values;
  const auto mean = channel_values("mean", normalize->mean(), channels);
  const auto std = channel_values("std", normalize->std(), channels);
  return values.sub_(mean).div_(std).contiguous();
}

}  // namespace

void check_indices(const at::Tensor& indices, std::int64_t size, std::source_location where) {
  const CallerPlace place(where);
  if (!indices.device().is_cpu() || indices.scalar_type() != at::kLong || indices.dim() != 1) {
    throw ArgumentError("get_batch: indices should be a 1-dimensional int64 tensor on the CPU");
  }
  const auto values = indices.accessor<std::int64_t, 1>();
  for (std::int64_t i = 0; i < values.size(0); ++i) {
    if (values[i] < 0 || values[i] >= size) {
      throw_error<ArgumentError>(
          "get_batch: index {} is out of range for a dataset of {} samples; check that the sampler belongs "
          "to this dataset",
          values[i], size);
    }
  }
}

TensorDataset::TensorDataset(at::Tensor data, at::Tensor target, SampleTransforms transforms,
                             std::source_location where)
    : data_(std::move(data)), target_(std::move(target)), transforms_(std::move(transforms)) {
  const CallerPlace place(where);
  check_pair("TensorDataset", data_, target_);
}

Batch TensorDataset::get_batch(const at::Tensor& indices, std::source_location where) const {
  const CallerPlace place(where);
  check_indices(indices, size());
  const auto chosen = indices_for(data_, indices);
  return transformed({.data = data_.index_select(0, chosen), .target = target_.index_select(0, chosen)},
                     indices, transforms_);
}

Example TensorDataset::operator[](SampleIndex index) const { return sample_at(*this, index); }

ImageDataset::ImageDataset(at::Tensor images, at::Tensor targets, const ImageDatasetOptions& options,
                           std::source_location where)
    : targets_(std::move(targets)),
      transforms_{.transform = options.transform, .target_transform = options.target_transform} {
  const CallerPlace place(where);
  check_pair("ImageDataset", images, targets_);
  if (options.transform && options.normalize) {
    throw ArgumentError(
        "ImageDataset: normalize excludes transform; end the transform with ToTensor and Normalize");
  }
  images_ = as_image_storage(images);
  values_ = byte_values(images_.size(1), options.normalize).to(images_.device());
}

ImageDataset ImageDataset::to(const c10::Device& device) const {
  auto moved = *this;
  for (auto* tensor : {&moved.images_, &moved.targets_, &moved.values_}) *tensor = tensor->to(device);
  return moved;
}

Batch ImageDataset::get_batch(const at::Tensor& indices, std::source_location where) const {
  const CallerPlace place(where);
  check_indices(indices, size());
  const auto chosen = indices_for(images_, indices);
  return transformed({.data = images_of(chosen), .target = targets_.index_select(0, chosen)}, indices,
                     transforms_);
}

Example ImageDataset::operator[](SampleIndex index) const { return sample_at(*this, index); }

at::Tensor ImageDataset::images_of(const at::Tensor& chosen) const {
  if (transforms_.transform) return images_.index_select(0, chosen);
  return images_.is_cpu() ? convert_on_cpu(chosen) : convert_on_device(chosen);
}

// The same table look-up, with operators.
at::Tensor ImageDataset::convert_on_device(const at::Tensor& chosen) const {
  auto positions = images_.index_select(0, chosen).to(at::kInt);
  const auto channels = images_.size(1);
  if (channels > 1) {
    positions.add_(at::arange(channels, positions.options()).mul_(kByteValues).view({1, channels, 1, 1}));
  }
  return values_.flatten().index_select(0, positions.flatten()).view(positions.sizes());
}

at::Tensor ImageDataset::convert_on_cpu(const at::Tensor& indices) const {
  const std::int64_t channels = images_.size(1);
  const std::int64_t pixels = images_.size(2) * images_.size(3);
  auto data = at::empty({indices.size(0), channels, images_.size(2), images_.size(3)}, at::kFloat);
  const auto* bytes = images_.const_data_ptr<std::uint8_t>();
  const auto* values = values_.const_data_ptr<float>();
  auto* out = data.mutable_data_ptr<float>();
  const auto samples = indices.accessor<std::int64_t, 1>();
  for (std::int64_t i = 0; i < samples.size(0); ++i) {
    const auto* image = bytes + samples[i] * channels * pixels;
    for (std::int64_t channel = 0; channel < channels; ++channel) {
      const auto* table = values + channel * kByteValues;
      out = std::transform(image, image + pixels, out, [table](std::uint8_t byte) { return table[byte]; });
      image += pixels;
    }
  }
  return data;
}

}  // namespace lockstep::data
