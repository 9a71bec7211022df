// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <string_view>

#include <lockstep/base/world.h>
#include <lockstep/data/sampler.h>

#include "base/throw_error.h"
#include "data/index_streams.h"
#include "data/random_draw.h"

namespace lockstep::data {
namespace {

void check_rank(std::string_view sampler, int rank, int num_replicas) {
  if (rank >= 0 && rank < num_replicas) return;
  throw_error<ArgumentError>(
      "{}: rank {} is not one of the {} replicas; rank should be in 0 .. num_replicas-1", sampler, rank,
      num_replicas);
}

// A rank's strided share of an order from `first` on, padded by repeating the order from its front.
struct ShareDraw {
  at::Tensor order;  // undefined: 0, 1, 2, ...
  std::int64_t first;
  std::int64_t count;
  int num_replicas;
  int rank;
  std::int64_t num_samples;
  bool done = false;

  at::Tensor operator()() {
    if (std::exchange(done, true)) return {};
    auto share = at::empty({num_samples}, at::kLong);
    auto* out = share.mutable_data_ptr<std::int64_t>();
    const auto* from = order.defined() ? order.const_data_ptr<std::int64_t>() : nullptr;
    for (std::int64_t i = 0; i < num_samples; ++i) {
      const std::int64_t position = (first + rank + i * num_replicas) % count;
      out[i] = from != nullptr ? from[position] : position;
    }
    return share;
  }
};

std::int64_t share_of(std::int64_t count, int num_replicas, bool drop_last) {
  return (drop_last ? count : count + num_replicas - 1) / num_replicas;
}

}  // namespace

DistributedSampler::DistributedSampler(SampleCount dataset, DistributedSamplerOptions options)
    : count_(dataset.value),
      num_replicas_(options.num_replicas.value_or(current_world().size)),
      rank_(options.rank.value_or(current_world().rank)),
      options_(options) {
  check_rank("DistributedSampler", rank_, num_replicas_);
  num_samples_ = share_of(count_, num_replicas_, options_.drop_last);
}

std::unique_ptr<IndexStream> DistributedSampler::iter_from(std::int64_t samples) const {
  at::Tensor order;
  if (options_.shuffle) {
    // Unsigned, because seed + epoch may overflow, as in Python.
    const auto seed = static_cast<std::uint64_t>(options_.seed) + static_cast<std::uint64_t>(epoch_);
    order = at::randperm(count_, seeded_generator(static_cast<std::int64_t>(seed)), at::kLong);
  }
  return std::make_unique<DrawnStream<ShareDraw>>(ShareDraw{
      .order = std::move(order),
      .first = samples,
      .count = count_,
      .num_replicas = num_replicas_,
      .rank = rank_,
      .num_samples =
          share_of(std::max<std::int64_t>(0, count_ - samples), num_replicas_, options_.drop_last)});
}

DistributedEvalSampler::DistributedEvalSampler(SampleCount dataset, DistributedEvalSamplerOptions options)
    : count_(dataset.value),
      num_replicas_(options.num_replicas.value_or(current_world().size)),
      rank_(options.rank.value_or(current_world().rank)) {
  check_rank("DistributedEvalSampler", rank_, num_replicas_);
}

std::unique_ptr<IndexStream> DistributedEvalSampler::iter_from(std::int64_t samples) const {
  return std::make_unique<StridedStream>(samples + rank_, num_replicas_, count_);
}

std::int64_t DistributedEvalSampler::size() const {
  return rank_ >= count_ ? 0 : (count_ - rank_ + num_replicas_ - 1) / num_replicas_;
}

}  // namespace lockstep::data
