// SPDX-License-Identifier: BSD-3-Clause
#include <atomic>
#include <map>
#include <string>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/data/loader.h>
#include <lockstep/data/subset.h>

#include "support/error_of.h"

namespace lockstep::data {
namespace {

using lockstep::testing::error_of;
using ::testing::HasSubstr;

// Samples first, first + 1, ...
TensorDataset numbers_from(std::int64_t first, std::int64_t samples) {
  const auto numbers = at::arange(first, first + samples);
  return {numbers.view({-1, 1}).expand({-1, 3}).to(at::kFloat), numbers};
}

// Yields a pair and counts its batches.
struct PairDataset {
  std::shared_ptr<std::atomic<int>> batches = std::make_shared<std::atomic<int>>(0);
  std::int64_t size() const { return 4; }
  std::pair<at::Tensor, std::vector<at::Tensor>> get_batch(const at::Tensor& indices) const {
    ++*batches;
    return {indices + 100, {indices.to(at::kDouble), at::zeros({indices.numel(), 2})}};
  }
};

TEST(ConcatDataset, KeepsTheOrderOfTheIndices) {
  const ConcatDataset data(std::vector{numbers_from(0, 3), numbers_from(10, 0), numbers_from(20, 4)});
  EXPECT_EQ(data.size(), 7);
  EXPECT_EQ(data.cumulative_sizes(), (std::vector<std::int64_t>{3, 3, 7}));
  const auto batch = data.get_batch(at::tensor({6, 0, 3, 2, 2}, at::kLong));
  const auto expected = at::tensor({23, 0, 20, 2, 2}, at::kLong);
  EXPECT_TRUE(at::equal(batch.target, expected));
  EXPECT_TRUE(at::equal(batch.data, expected.view({-1, 1}).expand({-1, 3}).to(at::kFloat)));
}

TEST(ConcatDataset, JoinsDatasetsOfSeveralTypes) {
  ConcatDataset data(numbers_from(0, 5), Subset(numbers_from(10, 5), {4, 3}));
  EXPECT_EQ(data.get_batch(at::tensor({5}, at::kLong)).target.item<int>(), 14);
  DataLoader loader(std::move(data), {.batch_size = 4});
  std::vector<at::Tensor> targets;
  for (auto& batch : loader) targets.push_back(batch.target);
  EXPECT_TRUE(at::equal(at::cat(targets), at::tensor({0, 1, 2, 3, 4, 14, 13}, at::kLong)));
}

TEST(ConcatDataset, AsksEachDatasetOncePerBatch) {
  const PairDataset first;
  const PairDataset second;
  const ConcatDataset data(first, second);
  const auto [numbers, others] = data.get_batch(at::tensor({7, 0, 5, 1}, at::kLong));
  EXPECT_TRUE(at::equal(numbers, at::tensor({103, 100, 101, 101}, at::kLong)));
  ASSERT_EQ(others.size(), 2U);
  EXPECT_TRUE(at::equal(others[0], at::tensor({3., 0., 1., 1.}, at::kDouble)));
  EXPECT_EQ(*first.batches, 1);
  EXPECT_EQ(*second.batches, 1);
  EXPECT_EQ(data.get_batch(at::empty({0}, at::kLong)).first.numel(), 0);
}

TEST(ConcatDataset, RejectsWhatCannotBeMerged) {
  static_assert(is_mergeable_batch<std::tuple<at::Tensor, std::optional<at::Tensor>>>);
  static_assert(!is_mergeable_batch<std::pair<at::Tensor, std::string>>);
  static_assert(!is_mergeable_batch<std::map<std::string, at::Tensor>>);
  EXPECT_THAT(error_of([] { ConcatDataset(std::vector<TensorDataset>{}); }), HasSubstr("no datasets"));
  const ConcatDataset data(numbers_from(0, 5), TensorDataset(at::zeros({5, 4}), at::arange(5)));
  EXPECT_THAT(error_of([&] {
                data.get_batch(at::tensor({0, 9}, at::kLong));
              }),
              HasSubstr("Float [1, 3] on cpu and Float [1, 4] on cpu differ"));
  EXPECT_THAT(error_of([&] { data.get_batch(at::tensor({10}, at::kLong)); }),
              HasSubstr("index 10 is out of range for a dataset of 10 samples"));
}

}  // namespace
}  // namespace lockstep::data
