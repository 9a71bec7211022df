// SPDX-License-Identifier: BSD-3-Clause
#include <cmath>

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

TEST(SubsetRandomSampler, YieldsItsIndicesAndAcceptsNone) {
  const auto indices = SubsetRandomSampler({7, 3, 7}).indices();
  EXPECT_TRUE(at::equal(std::get<0>(indices.sort()), at::tensor({3, 7, 7})));
  EXPECT_EQ(SubsetRandomSampler(at::empty({0}, at::kLong)).indices().numel(), 0);
}

TEST(SubsetRandomSampler, RejectsInvalidArguments) {
  EXPECT_THROW(SubsetRandomSampler(at::Tensor()), ArgumentError);
  EXPECT_THROW(SubsetRandomSampler(at::ones({3})), ArgumentError);
  EXPECT_THROW(SubsetRandomSampler(at::ones({3, 1}, at::kLong)), ArgumentError);
}

TEST(WeightedRandomSampler, DrawsNothingOfWeightZero) {
  const auto indices = WeightedRandomSampler(at::tensor({0, 3, 0, 1}), 100).indices();
  EXPECT_EQ(indices.numel(), 100);
  EXPECT_TRUE(at::logical_or(indices.eq(1), indices.eq(3)).all().item<bool>());
}

TEST(WeightedRandomSampler, ResumesWithTheIndicesThatAreLeft) {
  const auto pass_from = [](std::int64_t samples) {
    torch::manual_seed(3);
    const auto stream = WeightedRandomSampler({1, 2, 3}, 20).iter_from(samples);
    std::vector<std::int64_t> indices(20);
    indices.resize(static_cast<std::size_t>(stream->read(indices)));
    return indices;
  };
  const auto whole = pass_from(0);
  EXPECT_EQ(whole.size(), 20U);
  EXPECT_EQ(pass_from(13), std::vector(whole.begin() + 13, whole.end()));
}

TEST(WeightedRandomSampler, RejectsInvalidArguments) {
  using Weights = std::vector<double>;
  EXPECT_THROW(WeightedRandomSampler(at::ones({2, 2}), 1), ArgumentError);
  EXPECT_THROW(WeightedRandomSampler(at::Tensor(), 1), ArgumentError);
  EXPECT_THROW(WeightedRandomSampler(at::ones({(1 << 24) + 1}, at::kBool), 1), ArgumentError);
  EXPECT_THROW(WeightedRandomSampler(Weights{}, 1), ArgumentError);
  EXPECT_THROW(WeightedRandomSampler(Weights{0, 0}, 1), ArgumentError);
  EXPECT_THROW(WeightedRandomSampler(Weights{1, -1}, 1), ArgumentError);
  EXPECT_THROW(WeightedRandomSampler(Weights{1, INFINITY}, 1), ArgumentError);
  EXPECT_THROW(WeightedRandomSampler(Weights{1, 1}, 0), ArgumentError);
  EXPECT_THROW(WeightedRandomSampler(Weights{1, 1}, 3, {.replacement = false}), ArgumentError);
}

TEST(BatchSampler, RejectsInvalidArguments) {
  EXPECT_THROW(BatchSampler(nullptr, 2), ArgumentError);
  EXPECT_THROW(BatchSampler(std::make_shared<SequentialSampler>(3), 0), ArgumentError);
  EXPECT_THROW(BatchSampler(std::make_shared<SequentialSampler>(3), -4), ArgumentError);
}

TEST(BatchSampler, StaysAtItsEnd) {
  const auto pass = BatchSampler(std::make_shared<SequentialSampler>(4), 4).iter();
  EXPECT_TRUE(at::equal(pass->next(), at::arange(4)));
  EXPECT_FALSE(pass->next().defined());
  EXPECT_FALSE(pass->next().defined());
}

}  // namespace
}  // namespace lockstep::data
