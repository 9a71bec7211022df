// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <array>

#include <lockstep/data/sampler.h>

#include "base/throw_error.h"
#include "data/index_streams.h"
#include "data/random_draw.h"

namespace lockstep::data {
namespace {

constexpr std::int64_t kReplacementPart = 32;  // Python draws as many at once, which determines the values

// The indices of one pass of RandomSampler, part by part.
class RandomDraw {
 public:
  RandomDraw(std::int64_t count, std::int64_t num_samples, const RandomSamplerOptions& options)
      : count_(count), left_(num_samples), replacement_(options.replacement), generator_(options.generator) {}

  at::Tensor operator()() {
    if (ended_) return {};
    if (!generator_) generator_ = seeded_generator(draw_seed(std::nullopt));
    const std::int64_t part = replacement_ ? kReplacementPart : count_;
    const std::int64_t take = std::min(part, left_);
    // Python draws a last part even when nothing is left.
    ended_ = take < part;
    left_ -= take;
    if (replacement_) return at::randint(count_, {take}, generator_, at::kLong);
    return at::randperm(count_, generator_, at::kLong).narrow(0, 0, take);
  }

 private:
  std::int64_t count_;
  std::int64_t left_;
  bool replacement_;
  std::optional<at::Generator> generator_;
  bool ended_ = false;
};

}  // namespace

at::Tensor Sampler::indices() const {
  // One more than size(), so that the pass is read to its end, as by Python's list().
  auto all = at::empty({size() + 1}, at::kLong);
  const auto count =
      iter()->read({all.mutable_data_ptr<std::int64_t>(), static_cast<std::size_t>(all.numel())});
  return all.narrow(0, 0, std::min(count, size()));
}

std::unique_ptr<IndexStream> Sampler::iter_from(std::int64_t samples) const {
  auto stream = iter();
  std::array<std::int64_t, 1024> skipped{};
  while (samples > 0) {
    const auto count = stream->read(
        std::span(skipped).first(static_cast<std::size_t>(std::min<std::int64_t>(samples, skipped.size()))));
    if (count == 0) break;
    samples -= count;
  }
  return stream;
}

std::unique_ptr<IndexStream> SequentialSampler::iter() const {
  return std::make_unique<StridedStream>(0, 1, count_);
}

RandomSampler::RandomSampler(SampleCount dataset, RandomSamplerOptions options)
    : count_(dataset.value),
      num_samples_(options.num_samples.value_or(dataset.value)),
      options_(std::move(options)) {
  if (count_ <= 0) throw ArgumentError("RandomSampler: the dataset is empty; there is nothing to draw from");
  if (num_samples_ <= 0) {
    throw_error<ArgumentError>("RandomSampler: num_samples should be a positive number, but it is {}",
                               num_samples_);
  }
}

std::unique_ptr<IndexStream> RandomSampler::iter() const {
  return std::make_unique<DrawnStream<RandomDraw>>(RandomDraw(count_, num_samples_, options_));
}

}  // namespace lockstep::data
