// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <array>

#include <ATen/ops/empty.h>

#include <lockstep/data/files.h>

#include "base/throw_error.h"
#include "data/mapped_file.h"
#include "data/sample_transforms.h"

namespace lockstep::data {
namespace {

void check_options(const TokenDatasetOptions& options) {
  if (options.dtype != at::kUInt16 && options.dtype != at::kUInt32) {
    throw_error<ArgumentError>("TokenDataset: dtype is {}; it should be at::kUInt16 or at::kUInt32",
                               c10::toString(options.dtype));
  }
  if (options.context_length < 1 || options.stride.value_or(1) < 1) {
    throw_error<ArgumentError>(
        "TokenDataset: context_length {} and stride {} should be positive numbers of tokens",
        options.context_length, options.stride.value_or(options.context_length));
  }
}

at::Tensor map_tokens(const std::filesystem::path& file, at::ScalarType dtype) {
  const auto bytes = map_file(file);
  if (const auto width = static_cast<std::int64_t>(c10::elementSize(dtype)); bytes.numel() % width != 0) {
    throw_error<DataError>("{}: its {} bytes are not a whole number of {} tokens; was it copied in full?",
                           file.string(), bytes.numel(), c10::toString(dtype));
  }
  return bytes.view(dtype);
}

template <typename Token>
void copy_windows(const at::Tensor& tokens, const at::Tensor& indices, std::int64_t stride, Batch& batch) {
  const auto* from = tokens.const_data_ptr<Token>();
  const auto length = batch.data.size(1);
  auto* data = batch.data.mutable_data_ptr<std::int64_t>();
  auto* target = batch.target.mutable_data_ptr<std::int64_t>();
  const auto windows = indices.accessor<std::int64_t, 1>();
  for (std::int64_t i = 0; i < windows.size(0); ++i) {
    const auto* window = from + windows[i] * stride;
    data = std::copy_n(window, length, data);
    target = std::copy_n(window + 1, length, target);
  }
}

}  // namespace

TokenDataset::TokenDataset(const std::filesystem::path& file, const TokenDatasetOptions& options)
    : context_length_(options.context_length),
      stride_(options.stride.value_or(options.context_length)),
      transforms_{.transform = options.transform, .target_transform = options.target_transform} {
  check_options(options);
  tokens_ = map_tokens(file, options.dtype);
  // The last target needs one token more.
  const auto starts = tokens_.numel() - context_length_;
  if (starts < 1) {
    throw_error<DataError>("{}: has {} tokens, fewer than the {} + 1 of a sample", file.string(),
                           tokens_.numel(), context_length_);
  }
  windows_ = (starts - 1) / stride_ + 1;
}

Batch TokenDataset::get_batch(const at::Tensor& indices) const {
  check_indices(indices, size());
  const std::array sizes{indices.size(0), context_length_};
  Batch batch{.data = at::empty(sizes, at::kLong), .target = at::empty(sizes, at::kLong)};
  if (tokens_.scalar_type() == at::kUInt16) {
    copy_windows<std::uint16_t>(tokens_, indices, stride_, batch);
  } else {
    copy_windows<std::uint32_t>(tokens_, indices, stride_, batch);
  }
  return transformed(std::move(batch), indices, transforms_);
}

}  // namespace lockstep::data
