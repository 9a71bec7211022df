// SPDX-License-Identifier: BSD-3-Clause
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/data/loader.h>
#include <lockstep/data/split.h>

#include "support/error_of.h"

namespace lockstep::data {
namespace {

using lockstep::testing::error_of;
using ::testing::HasSubstr;

TensorDataset numbered(std::int64_t samples) {
  return {at::arange(samples).view({-1, 1}), at::arange(samples).mul(10)};
}

TEST(Subset, SelectsSamplesInItsOrder) {
  const Subset subset(numbered(10), {7, 2, 7, 5});
  EXPECT_EQ(subset.size(), 4);
  const auto batch = subset.get_batch(at::tensor({3, 0, 1}, at::kLong));
  EXPECT_TRUE(at::equal(batch.target, at::tensor({50, 70, 20}, at::kLong)));
}

TEST(Subset, IsADatasetOfALoader) {
  auto loader = make_loader(Subset(numbered(10), {9, 8, 7}), {.batch_size = 2, .num_workers = 1});
  std::vector<at::Tensor> targets;
  for (auto& batch : loader) targets.push_back(batch.target);
  EXPECT_TRUE(at::equal(at::cat(targets), at::tensor({90, 80, 70}, at::kLong)));
}

TEST(Subset, RejectsIndicesOutOfRange) {
  EXPECT_THROW(Subset(numbered(10), {0, 10}), ArgumentError);
  EXPECT_THROW(Subset(numbered(10), {-1}), ArgumentError);
  EXPECT_THROW(Subset(numbered(10), at::tensor({0.5})), ArgumentError);
  const Subset subset(numbered(10), {1, 2});
  EXPECT_THAT(error_of([&] { subset.get_batch(at::tensor({2}, at::kLong)); }),
              HasSubstr("index 2 is out of range for a dataset of 2 samples"));
}

TEST(RandomSplit, SharesOneDatasetAmongDisjointSubsets) {
  const auto splits = random_split(numbered(11), {0.5, 0.25, 0.25});
  ASSERT_EQ(splits.size(), 3U);
  EXPECT_EQ(splits[0].size(), 6);
  EXPECT_EQ(splits[1].size(), 3);
  EXPECT_EQ(&splits[0].dataset(), &splits[1].dataset());
  const auto all = at::cat({splits[0].indices(), splits[1].indices(), splits[2].indices()});
  EXPECT_TRUE(at::equal(std::get<0>(all.sort()), at::arange(11)));
}

TEST(RandomSplit, AddsTenTenthsUpToOne) {
  EXPECT_EQ(random_split(numbered(100), std::vector<SplitSize>(10, 0.1)).size(), 10U);
}

TEST(RandomSplit, WarnsOfAnEmptySplit) {
  ::testing::internal::CaptureStderr();
  const auto splits = random_split(numbered(2), {0.4, 0.4, 0.2});
  EXPECT_EQ(splits[2].size(), 0);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("split 2 is empty: fraction 0.2 of 2 samples"));
}

TEST(RandomSplit, RejectsLengthsThatDoNotAddUp) {
  EXPECT_THAT(error_of([] {
                random_split(numbered(10), {3, 6});
              }),
              HasSubstr("add up to 9, but the dataset has 10 samples"));
  EXPECT_THAT(error_of([] { random_split(numbered(10), {0.5, 0.4}); }), HasSubstr("length 0 is 0.5"));
  EXPECT_THAT(error_of([] { random_split(numbered(10), {-1, 11}); }), HasSubstr("length 0 is -1"));
  EXPECT_THAT(error_of([] { random_split(numbered(10), {1.5, -0.5}); }), HasSubstr("fraction 0 is 1.5"));
  EXPECT_THROW(random_split(numbered(10), {}), ArgumentError);
}

TEST(StratifiedShuffleSplit, GivesEveryClassItsShare) {
  const auto labels = at::arange(100, at::kByte).remainder(4).add(3);
  const auto [train, test] = stratified_shuffle_split(labels, {.test_size = 0.2, .seed = 5});
  EXPECT_EQ(train.numel(), 80);
  for (int label = 3; label < 7; ++label) {
    EXPECT_EQ(labels.index_select(0, test).eq(label).sum().item<int>(), 5);
  }
  EXPECT_TRUE(at::equal(std::get<0>(at::cat({train, test}).sort()), at::arange(100)));
}

TEST(StratifiedShuffleSplit, RejectsInvalidArguments) {
  const auto labels = at::tensor({0, 0, 0, 5, 5, 5});
  const auto message = [&](const StratifiedSplitOptions& options) {
    return error_of<ArgumentError>([&] { stratified_shuffle_split(labels, options); });
  };
  EXPECT_THAT(message({.test_size = 6}), HasSubstr("test_size is 6"));
  EXPECT_THAT(message({.train_size = 1.0}), HasSubstr("train_size is 1"));
  EXPECT_THAT(message({.test_size = 4, .train_size = 3}), HasSubstr("more than all 6 samples"));
  EXPECT_THAT(message({.test_size = 1}), HasSubstr("the test part has 1 samples"));
  EXPECT_THAT(message({.test_size = 5}), HasSubstr("the training part has 1 samples"));
  EXPECT_THAT(message({.seed = -1}), HasSubstr("seed is -1"));
  EXPECT_THAT(message({.seed = std::int64_t{1} << 32}), HasSubstr("seed is 4294967296"));
  EXPECT_THAT(error_of([] {
                stratified_shuffle_split(at::tensor({1, 1, -7}));
              }),
              HasSubstr("class -7 has only 1 sample"));
  EXPECT_THAT(error_of([] { stratified_shuffle_split(at::rand({4})); }), HasSubstr("of integers"));
}

}  // namespace
}  // namespace lockstep::data
