// SPDX-License-Identifier: BSD-3-Clause
#include "data/readable_samples.h"

#include <optional>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>

#include <lockstep/data/loader_position.h>

#include "base/throw_error.h"
#include "data/sample_transforms.h"

namespace lockstep::data {
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
