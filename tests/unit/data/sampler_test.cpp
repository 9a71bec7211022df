// SPDX-License-Identifier: BSD-3-Clause
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/data/sampler.h>

namespace lockstep::data {
namespace {

TEST(SequentialSampler, CountsUp) {
  EXPECT_TRUE(at::equal(SequentialSampler(5).indices(), at::arange(5)));
  EXPECT_EQ(SequentialSampler(0).indices().numel(), 0);
}

TEST(SequentialSampler, AcceptsAnythingWithASize) {
  const std::vector<int> dataset(7);
  EXPECT_EQ(SequentialSampler(dataset).size(), 7);
}

TEST(RandomSampler, VisitsEachSampleOnce) {
  const auto indices = RandomSampler(100).indices();
  EXPECT_TRUE(at::equal(std::get<0>(indices.sort()), at::arange(100)));
}

TEST(RandomSampler, PassesDiffer) {
  const RandomSampler sampler(100);
  EXPECT_FALSE(at::equal(sampler.indices(), sampler.indices()));
}

TEST(RandomSampler, RejectsInvalidArguments) {
  EXPECT_THROW(RandomSampler(0), ArgumentError);
  EXPECT_THROW(RandomSampler(0, {.num_samples = 3}), ArgumentError);
  EXPECT_THROW(RandomSampler(5, {.num_samples = 0}), ArgumentError);
}

TEST(BatchSampler, RejectsInvalidArguments) {
  EXPECT_THROW(BatchSampler(nullptr, {.batch_size = 2}), ArgumentError);
  EXPECT_THROW(BatchSampler(std::make_shared<SequentialSampler>(3), {.batch_size = 0}), ArgumentError);
  EXPECT_THROW(BatchSampler(std::make_shared<SequentialSampler>(3), {.batch_size = -4}), ArgumentError);
}

TEST(BatchSampler, StaysAtItsEnd) {
  const auto pass = BatchSampler(std::make_shared<SequentialSampler>(4), {.batch_size = 4}).iter();
  EXPECT_TRUE(at::equal(pass->next(), at::arange(4)));
  EXPECT_FALSE(pass->next().defined());
  EXPECT_FALSE(pass->next().defined());
}

}  // namespace
}  // namespace lockstep::data
