// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/tensor.h>

#include <lockstep/base/log.h>
#include <lockstep/base/world.h>
#include <lockstep/data/sampler.h>

#include "base/caller_place.h"
#include "base/throw_error.h"
#include "data/index_streams.h"
#include "data/world_share.h"
#include "device/generators.h"

namespace lockstep::data {
namespace {

constexpr std::int64_t kReplacementPart = 32;  // Python draws as many at once, which determines the values
constexpr std::int64_t kMostWeights = std::int64_t{1} << 24;  // torch.multinomial takes no more

void check_weights(const at::Tensor& weights) {
  if (!weights.defined() || !weights.is_cpu() || weights.dim() != 1 || weights.is_complex()) {
    throw ArgumentError(
        "WeightedRandomSampler: weights should be a 1-dimensional tensor of real numbers on the CPU");
  }
  if (weights.numel() < 1 || weights.numel() > kMostWeights) {
    throw_error<ArgumentError>("WeightedRandomSampler: there are {} weights; possible are 1 to {}",
                               weights.numel(), kMostWeights);
  }
}

// The sum, checked weight by weight, so that the message can name one.
void check_weight_values(std::span<const double> weights) {
  double sum = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (!std::isfinite(weights[i]) || weights[i] < 0) {
      throw_error<ArgumentError>(
          "WeightedRandomSampler: weight {} is {}; weights should be finite and not negative", i, weights[i]);
    }
    sum += weights[i];
  }
  if (!std::isfinite(sum) || sum <= 0) {
    throw_error<ArgumentError>(
        "WeightedRandomSampler: the weights add up to {}; the sum should be positive and finite", sum);
  }
}

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

RandomSampler::RandomSampler(SampleCount dataset, const RandomSamplerOptions& options,
                             std::source_location where)
    : count_(dataset.value), num_samples_(options.num_samples.value_or(dataset.value)), options_(options) {
  const CallerPlace place(where);
  if (count_ <= 0) throw ArgumentError("RandomSampler: the dataset is empty; there is nothing to draw from");
  if (num_samples_ <= 0) {
    throw_error<ArgumentError>("RandomSampler: num_samples should be a positive number, but it is {}",
                               num_samples_);
  }
}

std::unique_ptr<IndexStream> RandomSampler::iter() const {
  return std::make_unique<DrawnStream>([count = count_, left = num_samples_, generator = options_.generator,
                                        replacement = options_.replacement, ended = false]() mutable {
    if (ended) return at::Tensor();
    if (!generator) generator = device::seeded_generator(static_cast<std::uint64_t>(device::draw_seed({})));
    const std::int64_t part = replacement ? kReplacementPart : count;
    const std::int64_t take = std::min(part, left);
    // Python draws a last part even when nothing is left.
    ended = take < part;
    left -= take;
    if (replacement) return at::randint(count, {take}, generator, at::kLong);
    return at::randperm(count, generator, at::kLong).narrow(0, 0, take);
  });
}

SubsetRandomSampler::SubsetRandomSampler(at::Tensor indices, const SubsetRandomSamplerOptions& options,
                                         std::source_location where)
    : indices_(std::move(indices)), options_(options) {
  const CallerPlace place(where);
  if (!indices_.defined() || !indices_.is_cpu() || indices_.scalar_type() != at::kLong ||
      indices_.dim() != 1) {
    throw ArgumentError("SubsetRandomSampler: indices should be a 1-dimensional int64 tensor on the CPU");
  }
}

SubsetRandomSampler::SubsetRandomSampler(const std::vector<std::int64_t>& indices,
                                         const SubsetRandomSamplerOptions& options,
                                         std::source_location where)
    : SubsetRandomSampler(at::tensor(indices, at::kLong), options, where) {}

std::unique_ptr<IndexStream> SubsetRandomSampler::iter() const {
  return draw_once([indices = indices_, generator = options_.generator] {
    return indices.index_select(0, at::randperm(indices.size(0), generator, at::kLong));
  });
}

WeightedRandomSampler::WeightedRandomSampler(const at::Tensor& weights, std::int64_t num_samples,
                                             const WeightedRandomSamplerOptions& options,
                                             std::source_location where)
    : num_samples_(num_samples), options_(options) {
  const CallerPlace place(where);
  check_weights(weights);
  if (num_samples_ <= 0 || (!options_.replacement && num_samples_ > weights.numel())) {
    throw_error<ArgumentError>(
        "WeightedRandomSampler: num_samples is {} for {} weights; it should be positive and, without "
        "replacement, at most the number of weights",
        num_samples_, weights.numel());
  }
  weights_ = weights.to(at::kDouble).contiguous();
  check_weight_values({weights_.const_data_ptr<double>(), static_cast<std::size_t>(weights_.numel())});
}

WeightedRandomSampler::WeightedRandomSampler(const std::vector<double>& weights, std::int64_t num_samples,
                                             const WeightedRandomSamplerOptions& options,
                                             std::source_location where)
    : WeightedRandomSampler(at::tensor(weights, at::kDouble), num_samples, options, where) {}

std::unique_ptr<IndexStream> WeightedRandomSampler::iter() const {
  return draw_once([weights = weights_, count = num_samples_, options = options_] {
    return at::multinomial(weights, count, options.replacement, options.generator);
  });
}

std::unique_ptr<BatchStream> BatchSource::iter_from(std::int64_t batches, std::int64_t /*samples*/) const {
  auto stream = iter();
  for (std::int64_t i = 0; i < batches && stream->next().defined(); ++i) {
  }
  return stream;
}

BatchSampler::BatchSampler(SamplerPtr<Sampler> sampler, std::int64_t batch_size, bool drop_last,
                           std::source_location where)
    : sampler_(std::move(sampler)), batch_size_(batch_size), drop_last_(drop_last) {
  const CallerPlace place(where);
  if (!sampler_) throw ArgumentError("BatchSampler: no sampler was given (null pointer)");
  if (batch_size_ <= 0) {
    throw_error<ArgumentError>("BatchSampler: batch_size should be a positive number, but it is {}",
                               batch_size_);
  }
}

std::unique_ptr<BatchStream> BatchSampler::iter() const {
  return std::make_unique<BatchedStream>(sampler_->iter(), batch_size_, drop_last_);
}

std::unique_ptr<BatchStream> BatchSampler::iter_from(std::int64_t /*batches*/, std::int64_t samples) const {
  return std::make_unique<BatchedStream>(sampler_->iter_from(samples), batch_size_, drop_last_);
}

std::int64_t BatchSampler::size() const {
  const auto samples = sampler_->size();
  return (drop_last_ ? samples : samples + batch_size_ - 1) / batch_size_;
}

// The epoch, and the warning about passes in one order. Copies share it, and streams, which may outlive them.
struct DistributedSampler::Passes {
  std::int64_t epoch = 0;
  bool epoch_is_set = false;
  bool is_complete = false;  // one has been read to its end
  bool is_said = false;
  std::string line = line_text(CallerPlace::current());  // at which the loader or the sampler was made

  void begin() {
    if (epoch_is_set || !is_complete || std::exchange(is_said, true)) return;
    log(LogLevel::warning,
        fmt::format(
            "another pass over the samples{} begins without set_epoch(), so it has the order of the pass "
            "before; call set_epoch(epoch) on the loader, or on the sampler, at the start of each epoch, or "
            "set shuffle = false if the order does not matter",
            line.empty() ? "" : " of the loader or sampler made at " + line));
  }
};

DistributedSampler::DistributedSampler(SampleCount dataset, const DistributedSamplerOptions& options,
                                       std::source_location where)
    : DistributedSampler(CallerPlace(where), dataset, options) {}

DistributedSampler::DistributedSampler(const CallerPlace& /*place*/, SampleCount dataset,
                                       const DistributedSamplerOptions& options)
    : count_(dataset.value),
      num_replicas_(size_of(options, "DistributedSampler")),
      rank_(rank_of(options, "DistributedSampler")),
      options_(options),
      passes_(std::make_shared<Passes>()) {
  check_rank("DistributedSampler", rank_, num_replicas_);
}

std::int64_t DistributedSampler::shares() const { return share_now(options_, rank_, num_replicas_).size; }

std::int64_t DistributedSampler::size() const {
  return share_of(count_, static_cast<int>(shares()), options_.drop_last);
}

// The options' numbers would not follow the world.
bool DistributedSampler::is_of_current_world() const {
  if (options_.num_replicas || options_.rank) return false;
  const auto share = share_now(options_, rank_, num_replicas_);
  const auto now = current_world();
  return share.rank == now.rank && share.size == now.size;
}

void DistributedSampler::set_epoch(std::int64_t epoch) {
  passes_->epoch = epoch;
  passes_->epoch_is_set = true;
}

at::Tensor DistributedSampler::order(std::uint64_t seed) const {
  return at::randperm(count_, device::seeded_generator(seed), at::kLong);
}

std::unique_ptr<IndexStream> DistributedSampler::iter_from(std::int64_t samples) const {
  const auto part = share_now(options_, rank_, num_replicas_);
  check_world("DistributedSampler", options_, part);
  const auto size = share_of(std::max<std::int64_t>(0, count_ - samples), part.size, options_.drop_last);
  // Every num_replicas-th of the order, padded by repeating it from its front.
  auto share = at::arange(size, at::kLong).mul_(part.size).add_(samples + part.rank).remainder_(count_);
  if (options_.shuffle) {
    if (part.rank == 0 && current_world().rank == 0) passes_->begin();
    // Unsigned, because seed + epoch may overflow, as in Python.
    const auto seed = static_cast<std::uint64_t>(options_.seed) + static_cast<std::uint64_t>(passes_->epoch);
    share = order(seed).index_select(0, share);
  }
  return std::make_unique<DrawnStream>([share = std::move(share), passes = passes_]() mutable {
    passes->is_complete = passes->is_complete || !share.defined();
    return std::exchange(share, at::Tensor());
  });
}

DistributedEvalSampler::DistributedEvalSampler(SampleCount dataset,
                                               const DistributedEvalSamplerOptions& options,
                                               std::source_location where)
    : DistributedEvalSampler(CallerPlace(where), dataset, options) {}

DistributedEvalSampler::DistributedEvalSampler(const CallerPlace& /*place*/, SampleCount dataset,
                                               const DistributedEvalSamplerOptions& options)
    : count_(dataset.value),
      num_replicas_(size_of(options, "DistributedEvalSampler")),
      rank_(rank_of(options, "DistributedEvalSampler")),
      options_(options) {
  check_rank("DistributedEvalSampler", rank_, num_replicas_);
}

std::unique_ptr<IndexStream> DistributedEvalSampler::iter_from(std::int64_t samples) const {
  const auto share = share_now(options_, rank_, num_replicas_);
  check_world("DistributedEvalSampler", options_, share);
  return std::make_unique<StridedStream>(samples + share.rank, share.size, count_);
}

std::int64_t DistributedEvalSampler::shares() const { return share_now(options_, rank_, num_replicas_).size; }

std::int64_t DistributedEvalSampler::size() const {
  const auto share = share_now(options_, rank_, num_replicas_);
  return share.rank >= count_ ? 0 : (count_ - share.rank + share.size - 1) / share.size;
}

}  // namespace lockstep::data
