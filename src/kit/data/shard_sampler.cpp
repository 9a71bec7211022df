// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randperm.h>

#include <lockstep/data/web_dataset.h>

#include "base/throw_error.h"
#include "device/generators.h"

namespace lockstep::data {
namespace {

std::vector<std::int64_t> checked_sizes(std::vector<std::int64_t> sizes) {
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 0) throw_error<ArgumentError>("ShardSampler: shard {} has {} samples", i, sizes[i]);
  }
  return sizes;
}

DistributedSamplerOptions shared_options(const ShardSamplerOptions& options) {
  return {.num_replicas = options.num_replicas,
          .rank = options.rank,
          .shuffle = options.shuffle,
          .seed = options.seed,
          .drop_last = options.drop_last};
}

// The samples of the shards, one shard after another.
std::vector<std::int64_t> samples_in_order(const at::Tensor& shards, const std::vector<std::int64_t>& sizes) {
  std::vector<std::int64_t> begins(sizes.size());
  std::exclusive_scan(sizes.begin(), sizes.end(), begins.begin(), std::int64_t{0});
  std::vector<std::int64_t> samples;
  samples.reserve(static_cast<std::size_t>(std::reduce(sizes.begin(), sizes.end())));
  const std::span order(shards.const_data_ptr<std::int64_t>(), sizes.size());
  for (const auto shard : order) {
    const auto at = static_cast<std::size_t>(shard);
    for (std::int64_t i = 0; i < sizes[at]; ++i) samples.push_back(begins[at] + i);
  }
  return samples;
}

// Reorders the samples as a stream of them leaves a shuffle buffer.
void pass_through_buffer(std::span<std::int64_t> samples, std::size_t buffer_size,
                         at::CPUGeneratorImpl& generator) {
  auto filled = std::min(buffer_size, samples.size());
  std::vector<std::int64_t> buffer(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(filled));
  auto next = filled;
  for (auto& out : samples) {
    auto& taken = buffer[generator.random() % filled];  // torch.randint(filled)
    out = std::exchange(taken, buffer[filled - 1]);
    if (next < samples.size()) {
      buffer[filled - 1] = samples[next++];
    } else {
      --filled;
    }
  }
}

}  // namespace

ShardSampler::ShardSampler(const WebDataset& dataset, ShardSamplerOptions options)
    : ShardSampler(dataset.shard_sizes(), options) {}

ShardSampler::ShardSampler(std::vector<std::int64_t> shard_sizes, ShardSamplerOptions options)
    : DistributedSampler(std::reduce(shard_sizes.begin(), shard_sizes.end()), shared_options(options)),
      shard_sizes_(checked_sizes(std::move(shard_sizes))),
      shuffle_buffer_(options.shuffle_buffer),
      pieces_(options.pieces) {
  if (shuffle_buffer_ < 1 || pieces_ < 1) {
    throw_error<ArgumentError>("ShardSampler: shuffle_buffer {} and pieces {} should be positive numbers",
                               shuffle_buffer_, pieces_);
  }
}

at::Tensor ShardSampler::order(std::uint64_t seed) const {
  const auto generator = device::seeded_generator(seed);  // of this thread: it needs no lock
  const auto shards = at::randperm(static_cast<std::int64_t>(shard_sizes_.size()), generator, at::kLong);
  auto samples = samples_in_order(shards, shard_sizes_);
  auto order = at::empty({static_cast<std::int64_t>(samples.size())}, at::kLong);
  const std::span out(order.mutable_data_ptr<std::int64_t>(), samples.size());
  const auto pieces = static_cast<std::size_t>(pieces_);
  auto& draws = *at::check_generator<at::CPUGeneratorImpl>(generator);
  std::span rest(samples);
  for (std::size_t i = 0; i < pieces && !rest.empty(); ++i) {
    const auto piece = rest.first(samples.size() / pieces + (i < samples.size() % pieces ? 1 : 0));
    pass_through_buffer(piece, static_cast<std::size_t>(shuffle_buffer_), draws);
    for (std::size_t k = 0; k < piece.size(); ++k) out[k * pieces + i] = piece[k];
    rest = rest.subspan(piece.size());
  }
  return order;
}

}  // namespace lockstep::data
