// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>

#include <lockstep/data/dataset.h>
#include <lockstep/data/vision.h>
#include <lockstep/transforms/transforms.h>

#include "base/throw_error.h"

// How a dataset makes a batch of single samples.
namespace lockstep::data {

constexpr std::string_view kOneShape = "all samples of a batch should have one shape";
constexpr std::string_view kOnePictureSize =
    "add a transform that gives all samples one size, such as RandomResizedCrop or Resize and CenterCrop";

// Throws ArgumentError, which begins with the name of the dataset and ends with the advice, when the shapes
// differ.
at::Tensor stack_samples(std::string_view dataset, const std::vector<at::Tensor>& samples,
                         std::string_view advice = kOneShape);

// Applies the transforms to each sample of a batch. `indices`: the numbers of the samples in the dataset.
Batch transformed(Batch batch, const at::Tensor& indices, const SampleTransforms& transforms);

// A dataset whose samples are decoded one by one.
struct ReadableSamples {
  std::string_view dataset;  // for messages
  std::string where;         // for messages: its files
  std::int64_t size;
  OnUnreadable on_unreadable;
  std::atomic<std::int64_t>& unreadable;  // counts
  // A sample without the dimension of the batch. A DataError marks it as unreadable.
  std::function<Batch(std::int64_t index, const transforms::OptionalGenerator&)> load;
};

// Stacks samples. Throws ArgumentError when an index is out of range or shapes differ, and DataError as
// `on_unreadable` says.
Batch readable_batch(const ReadableSamples& samples, const at::Tensor& indices);

// The sample of `dataset[index]`.
template <typename Dataset>
Example sample_at(const Dataset& dataset, const SampleIndex& index) {
  const auto batch = dataset.get_batch(at::full({1}, index.value, at::kLong), index.place);
  if (batch.data.size(0) == 0)
    throw_error<DataError>("sample {} of the dataset cannot be decoded", index.value);
  return {.data = batch.data[0], .target = batch.target[0]};
}

}  // namespace lockstep::data
