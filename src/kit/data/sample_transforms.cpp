// SPDX-License-Identifier: BSD-3-Clause
#include "data/sample_transforms.h"

#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <fmt/ranges.h>

#include <lockstep/data/detail/dataset_pass.h>
#include <lockstep/data/loader_position.h>

#include "base/throw_error.h"

namespace lockstep::data {

TargetTransform::Function TargetTransform::of_class(std::function<std::int64_t(std::int64_t)> function) {
  return [function = std::move(function)](const at::Tensor& target) {
    if (target.numel() != 1 || !at::isIntegralType(target.scalar_type(), /*includeBool=*/false)) {
      throw_error<ArgumentError>(
          "target_transform: the function takes a class as std::int64_t, but a target is {} [{}]; pass a "
          "function of a tensor",
          c10::toString(target.scalar_type()), fmt::join(target.sizes(), ", "));
    }
    return at::scalar_tensor(function(target.item<std::int64_t>()), target.options().dtype(at::kLong));
  };
}

at::Tensor stack_samples(std::string_view dataset, const std::vector<at::Tensor>& samples,
                         std::string_view advice) {
  for (const auto& sample : samples) {
    if (sample.sizes() == samples.front().sizes()) continue;
    throw_error<ArgumentError>("{}: a batch has samples of the shapes [{}] and [{}]; {}", dataset,
                               fmt::join(samples.front().sizes(), ", "), fmt::join(sample.sizes(), ", "),
                               advice);
  }
  return at::stack(samples);
}

std::vector<at::Tensor> stack_tensors(const std::vector<std::vector<at::Tensor>>& samples) {
  std::vector<at::Tensor> stacked;
  for (std::size_t i = 0; i < samples.front().size(); ++i) {
    std::vector<at::Tensor> column;
    for (const auto& sample : samples) {
      if (sample.size() == samples.front().size()) {
        column.push_back(sample[i]);
      } else {
        throw_error<ArgumentError>("loader: a batch has samples of {} and of {} tensors",
                                   samples.front().size(), sample.size());
      }
    }
    stacked.push_back(
        stack_samples("loader", column, "give the dataset a collate() function that pads or crops them"));
  }
  return stacked;
}

Batch transformed(Batch batch, const at::Tensor& indices, const SampleTransforms& transforms) {
  if (indices.numel() == 0) return batch;
  const auto numbers = indices.accessor<std::int64_t, 1>();
  std::vector<at::Tensor> samples;
  std::vector<at::Tensor> targets;
  for (std::int64_t i = 0; i < numbers.size(0); ++i) {
    if (transforms.transform) {
      samples.push_back((*transforms.transform)(batch.data[i], sample_generator(numbers[i])));
    }
    if (transforms.target_transform) targets.push_back(transforms.target_transform(batch.target[i]));
  }
  if (!samples.empty()) batch.data = stack_samples("transform", samples);
  if (!targets.empty()) batch.target = stack_samples("target_transform", targets);
  return batch;
}

}  // namespace lockstep::data
