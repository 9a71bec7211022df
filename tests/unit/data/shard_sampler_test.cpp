// SPDX-License-Identifier: BSD-3-Clause
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/data/web_dataset.h>

#include "base/process_state.h"
#include "support/error_of.h"

namespace lockstep::data {
namespace {

using Samples = std::vector<std::int64_t>;

Samples samples_of(const Sampler& sampler) {
  const auto indices = sampler.indices();
  const auto* begin = indices.const_data_ptr<std::int64_t>();
  return {begin, begin + indices.numel()};
}

Samples sorted(Samples samples) {
  std::ranges::sort(samples);
  return samples;
}

Samples first_samples(std::int64_t count) {
  Samples samples;
  for (std::int64_t i = 0; i < count; ++i) samples.push_back(i);
  return samples;
}

TEST(ShardSamplers, WithoutShuffleReadInOrder) {
  EXPECT_EQ(samples_of(ShardSampler(Samples{3, 0, 4}, {.num_replicas = 1, .shuffle = false})),
            first_samples(7));
}

TEST(ShardSamplers, UseTheCurrentWorldByDefault) {
  set_current_world({.rank = 1, .size = 2});
  const auto samples = samples_of(ShardSampler(Samples{3, 3}, {.shuffle = false}));
  set_current_world({});
  EXPECT_EQ(samples, (Samples{1, 3, 5}));
}

TEST(ShardSamplers, AnEpochHasItsOwnOrderOfAllSamples) {
  ShardSampler sampler({10, 20, 30}, {.num_replicas = 1});
  const auto first = samples_of(sampler);
  EXPECT_EQ(sorted(first), first_samples(60));
  sampler.set_epoch(1);
  EXPECT_EQ(sorted(samples_of(sampler)), first_samples(60));
  EXPECT_NE(samples_of(sampler), first);
}

TEST(ShardSamplers, ABufferOfOneKeepsTheOrderWithinShards) {
  const auto samples =
      samples_of(ShardSampler(Samples(10, 5), {.num_replicas = 1, .shuffle_buffer = 1, .pieces = 1}));
  for (std::size_t i = 0; i < samples.size(); i += 5) {
    EXPECT_EQ(samples[i] % 5, 0);
    for (std::size_t k = 1; k < 5; ++k) EXPECT_EQ(samples[i + k], samples[i] + static_cast<std::int64_t>(k));
  }
}

TEST(ShardSamplers, TheBufferLimitsHowFarASampleMovesToTheFront) {
  for (const std::int64_t buffer : {2, 10, 100}) {
    const auto samples =
        samples_of(ShardSampler({2000}, {.num_replicas = 1, .shuffle_buffer = buffer, .pieces = 1}));
    std::int64_t farthest = 0;
    for (std::size_t at = 0; at < samples.size(); ++at) {
      farthest = std::max(farthest, samples[at] - static_cast<std::int64_t>(at));
    }
    EXPECT_EQ(farthest, buffer - 1);
  }
}

TEST(ShardSamplers, RanksReadDifferentShards) {
  const Samples sizes(8, 100);
  std::set<std::int64_t> seen;
  for (int rank = 0; rank < 4; ++rank) {
    const ShardSampler sampler(sizes, {.num_replicas = 4, .rank = rank});
    std::set<std::int64_t> shards;
    for (const auto sample : samples_of(sampler)) shards.insert(sample / 100);
    EXPECT_EQ(shards.size(), 2U);
    seen.merge(shards);
    EXPECT_TRUE(shards.empty()) << "a shard is read by two ranks";
  }
  EXPECT_EQ(seen.size(), 8U);
}

TEST(ShardSamplers, RanksGetEquallyManySamples) {
  for (const bool drop_last : {false, true}) {
    Samples all;
    for (int rank = 0; rank < 3; ++rank) {
      const ShardSampler sampler({4, 6, 1}, {.num_replicas = 3, .rank = rank, .drop_last = drop_last});
      const auto samples = samples_of(sampler);
      EXPECT_EQ(samples.size(), drop_last ? 3U : 4U);
      all.insert(all.end(), samples.begin(), samples.end());
    }
    const std::set<std::int64_t> distinct(all.begin(), all.end());
    EXPECT_EQ(distinct.size(), drop_last ? 9U : 11U);
  }
}

// What the ranks read from there on, up to `most` each.
Samples read_by_ranks(int ranks, std::int64_t from, std::size_t most) {
  Samples all;
  for (int rank = 0; rank < ranks; ++rank) {
    const ShardSampler sampler({25, 0, 31, 4}, {.num_replicas = ranks, .rank = rank, .shuffle_buffer = 5});
    Samples some(most);
    const auto count = sampler.iter_from(from)->read(some);
    all.insert(all.end(), some.begin(), some.begin() + count);
  }
  return all;
}

TEST(ShardSamplers, AnotherNumberOfRanksReadsTheRest) {
  for (const auto& [before, then, last] : {std::tuple{1, 2, 3}, {3, 2, 1}, {2, 5, 3}, {4, 4, 6}}) {
    auto all = read_by_ranks(before, 0, 6);
    const auto second = read_by_ranks(then, static_cast<std::int64_t>(all.size()), 3);
    all.insert(all.end(), second.begin(), second.end());
    const auto left = 60 - static_cast<std::int64_t>(all.size());
    const auto third = read_by_ranks(last, 60 - left, 100);
    all.insert(all.end(), third.begin(), third.end());
    const auto padding = (last - left % last) % last;
    EXPECT_EQ(static_cast<std::int64_t>(all.size()), 60 + padding);
    auto distinct = sorted(all);
    distinct.erase(std::ranges::unique(distinct).begin(), distinct.end());
    EXPECT_EQ(distinct, first_samples(60)) << before << " " << then << " " << last;
  }
}

TEST(ShardSamplers, RefuseOptionsThatAreNotPossible) {
  const auto refused = [](const Samples& sizes, const ShardSamplerOptions& options) {
    return lockstep::testing::error_of<ArgumentError>([&] { ShardSampler(sizes, options); });
  };
  EXPECT_THAT(refused({4}, {.shuffle_buffer = 0}), ::testing::HasSubstr("shuffle_buffer 0"));
  EXPECT_THAT(refused({4}, {.pieces = -1}), ::testing::HasSubstr("pieces -1"));
  EXPECT_THAT(refused({4, -2}, {}), ::testing::HasSubstr("shard 1 has -2 samples"));
  EXPECT_THAT(refused({4}, {.num_replicas = 2, .rank = 2}), ::testing::HasSubstr("rank 2"));
}

}  // namespace
}  // namespace lockstep::data
