// SPDX-License-Identifier: BSD-3-Clause
#include "data/sample_batches.h"

#include <optional>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <fmt/ranges.h>

#include <lockstep/data/detail/loader_iteration.h>
#include <lockstep/data/loader_options.h>

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

namespace {

std::optional<Batch> try_load(const ReadableSamples& samples, std::int64_t index,
                              const transforms::OptionalGenerator& generator) {
  try {
    return samples.load(index, generator);
  } catch (const DataError&) {
    ++samples.unreadable;
    if (samples.on_unreadable == OnUnreadable::raise) throw;
    return std::nullopt;
  }
}

std::optional<Batch> load_readable(const ReadableSamples& samples, std::int64_t index) {
  const auto tries = samples.on_unreadable == OnUnreadable::replace ? samples.size : 1;
  for (std::int64_t i = 0; i < tries; ++i) {
    if (auto sample = try_load(samples, (index + i) % samples.size, sample_generator(index))) return sample;
  }
  if (samples.on_unreadable == OnUnreadable::skip) return std::nullopt;
  throw_error<DataError>("{}: no sample of the dataset can be decoded", samples.where);
}

}  // namespace

Batch readable_batch(const ReadableSamples& samples, const at::Tensor& indices) {
  check_indices(indices, samples.size);
  const auto chosen = indices.accessor<std::int64_t, 1>();
  std::vector<at::Tensor> data;
  std::vector<at::Tensor> targets;
  for (std::int64_t i = 0; i < chosen.size(0); ++i) {
    auto sample = load_readable(samples, chosen[i]);
    if (!sample) continue;
    data.push_back(std::move(sample->data));
    targets.push_back(std::move(sample->target));
  }
  if (data.empty()) return {.data = at::empty({0}), .target = at::empty({0}, at::kLong)};
  return {.data = stack_samples(samples.dataset, data, kOnePictureSize),
          .target = stack_samples(samples.dataset, targets)};
}

}  // namespace lockstep::data
