// SPDX-License-Identifier: BSD-3-Clause
#include <cstdint>
#include <source_location>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/data/sampler.h>

#include "base/process_state.h"
#include "support/error_of.h"

namespace lockstep::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class DistributedSamplers : public ::testing::Test {
 protected:
  void TearDown() override { set_current_world({}); }
};

template <typename Sampler, typename Options>
std::string refusal(const Options& options) {
  return lockstep::testing::error_of<ArgumentError>([&] { Sampler(10, options); });
}

TEST_F(DistributedSamplers, UseTheCurrentWorldByDefault) {
  set_current_world({.rank = 2, .size = 4});
  const DistributedSampler sampler(10, {.shuffle = false});
  EXPECT_TRUE(at::equal(sampler.indices(), at::tensor({2, 6, 0}, at::kLong)));
  EXPECT_TRUE(at::equal(DistributedEvalSampler(10).indices(), at::tensor({2, 6}, at::kLong)));
}

TEST_F(DistributedSamplers, GoOnInASmallerWorld) {
  set_current_world({.rank = 2, .size = 4});
  const DistributedSampler by_world(11, {.shuffle = false});
  const DistributedSampler by_numbers(11, 4, 2, false);  // perhaps on every rank
  const DistributedEvalSampler evaluation(11);
  EXPECT_TRUE(by_world.is_of_current_world());
  EXPECT_FALSE(by_numbers.is_of_current_world());
  shrink_current_world({.rank = 1, .size = 3});
  set_current_world({.rank = 1, .size = 3});  // the same ranks have met once more
  EXPECT_EQ(by_world.shares(), 3);
  EXPECT_TRUE(at::equal(by_world.indices(), at::tensor({1, 4, 7, 10}, at::kLong)));
  EXPECT_EQ(by_numbers.shares(), 4);
  shrink_current_world({.rank = 0, .size = 1});
  EXPECT_EQ(by_world.size(), 11);
  EXPECT_EQ(evaluation.size(), 11);
  // After 8 samples of 4 ranks.
  std::vector<std::int64_t> rest(4);
  EXPECT_EQ(by_world.iter_from(8)->read(rest), 3);
  EXPECT_EQ(rest, (std::vector<std::int64_t>{8, 9, 10, 0}));
  set_current_world({.rank = 1, .size = 2});
  EXPECT_EQ(by_world.shares(), 4);
}

TEST_F(DistributedSamplers, NameAnInvalidRank) {
  for (const int rank : {-1, 4, 7}) {
    const auto named = AllOf(HasSubstr("rank " + std::to_string(rank) + " "), HasSubstr("the 4 replicas"));
    EXPECT_THAT(refusal<DistributedSampler>(DistributedSamplerOptions{.num_replicas = 4, .rank = rank}),
                named);
    EXPECT_THAT(
        refusal<DistributedEvalSampler>(DistributedEvalSamplerOptions{.num_replicas = 4, .rank = rank}),
        named);
  }
  EXPECT_THAT(refusal<DistributedSampler>(DistributedSamplerOptions{.num_replicas = 0}),
              HasSubstr("0 replicas"));
}

TEST_F(DistributedSamplers, AnEpochHasItsOwnOrder) {
  DistributedSampler sampler(50, {.num_replicas = 2, .rank = 0});
  const auto first = sampler.indices();
  EXPECT_TRUE(at::equal(sampler.indices(), first));
  sampler.set_epoch(1);
  EXPECT_FALSE(at::equal(sampler.indices(), first));
}

std::string log_of_passes(DistributedSampler& sampler, int passes) {
  ::testing::internal::CaptureStderr();
  for (int pass = 0; pass < passes; ++pass) {
    const auto stream = sampler.iter();
    std::vector<std::int64_t> batch(10);
    while (stream->read(batch) > 0) continue;
  }
  return ::testing::internal::GetCapturedStderr();
}

TEST_F(DistributedSamplers, RankZeroWarnsOnceOfPassesInOneOrder) {
  DistributedSampler first(50, {.num_replicas = 2, .rank = 0});
  EXPECT_EQ(log_of_passes(first, 1), "");
  const auto said = log_of_passes(first, 1);
  EXPECT_THAT(said, AllOf(HasSubstr("without set_epoch()"), HasSubstr("the order of the pass before"),
                          HasSubstr("call set_epoch(epoch) on the loader")));
  EXPECT_EQ(log_of_passes(first, 2), "");
  const auto here = std::source_location::current();
  DistributedSampler second(50, {.num_replicas = 2, .rank = 0}, here);
  EXPECT_THAT(log_of_passes(second, 3),
              HasSubstr("distributed_sampler_test.cpp:" + std::to_string(here.line()) + " begins"));
  DistributedSampler other(50, {.num_replicas = 2, .rank = 1});
  EXPECT_EQ(log_of_passes(other, 2), "");
  DistributedSampler in_order(50, {.num_replicas = 2, .rank = 0, .shuffle = false});
  EXPECT_EQ(log_of_passes(in_order, 2), "");
  // The same epoch twice is no mistake here, e.g. to measure the accuracy on the training data.
  DistributedSampler with_epochs(50, {.num_replicas = 2, .rank = 0});
  with_epochs.set_epoch(0);
  EXPECT_EQ(log_of_passes(with_epochs, 2), "");
}

TEST_F(DistributedSamplers, ALookAtTheFirstBatchIsNoPass) {
  const DistributedSampler sampler(50, {.num_replicas = 2, .rank = 0});
  ::testing::internal::CaptureStderr();
  for (int pass = 0; pass < 2; ++pass) {
    std::vector<std::int64_t> batch(10);
    sampler.iter()->read(batch);
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST_F(DistributedSamplers, AnEmptyDatasetGivesNothing) {
  EXPECT_EQ(DistributedSampler(0, {.num_replicas = 2, .rank = 1}).indices().numel(), 0);
  EXPECT_EQ(DistributedEvalSampler(0, {.num_replicas = 2, .rank = 1}).indices().numel(), 0);
}

TEST_F(DistributedSamplers, EvaluationSeesEachSampleExactlyOnce) {
  for (const int world : {1, 2, 3, 7, 16}) {
    for (const std::int64_t n : {1, 2, 10, 16, 33}) {
      auto seen = at::zeros({n}, at::kLong);
      for (int rank = 0; rank < world; ++rank) {
        const DistributedEvalSampler sampler(n, {.num_replicas = world, .rank = rank});
        const auto share = sampler.indices();
        EXPECT_EQ(share.numel(), sampler.size());
        seen.index_add_(0, share, at::ones_like(share));
      }
      EXPECT_TRUE(at::equal(seen, at::ones({n}, at::kLong))) << world << " ranks, " << n << " samples";
    }
  }
}

}  // namespace
}  // namespace lockstep::data
