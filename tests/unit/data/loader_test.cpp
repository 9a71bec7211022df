// SPDX-License-Identifier: BSD-3-Clause
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/data/loader.h>
#include <lockstep/data/sampler.h>

#include "base/process_state.h"

namespace lockstep::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Numbers = std::vector<std::int64_t>;

TensorDataset counting(std::int64_t size) { return {at::arange(size), at::arange(size) * 10}; }

template <typename Loader>
Numbers numbers_of_pass(Loader& loader) {
  Numbers seen;
  for (auto& [data, target] : loader) {
    for (std::int64_t i = 0; i < data.size(0); ++i) seen.push_back(data[i].template item<std::int64_t>());
  }
  return seen;
}

class LoaderTest : public ::testing::Test {
 protected:
  void TearDown() override { set_current_world({}); }
};

void expect_refused(const DataLoaderOptions& options, const std::string& why) {
  EXPECT_THAT([&] { DataLoader(counting(4), options); }, ThrowsMessage<ArgumentError>(HasSubstr(why)));
}

TEST_F(LoaderTest, YieldsBatchesInOrder) {
  DataLoader loader(counting(5), {.batch_size = 2});
  EXPECT_EQ(loader.size(), 3);
  std::vector<std::int64_t> sizes;
  for (auto& batch : loader) sizes.push_back(batch.data.size(0));
  EXPECT_THAT(sizes, ElementsAre(2, 2, 1));
  EXPECT_THAT(numbers_of_pass(loader), ElementsAre(0, 1, 2, 3, 4));
}

TEST_F(LoaderTest, BatchSizeIsOneUnlessGiven) {
  DataLoader loader(counting(3));
  EXPECT_EQ(loader.size(), 3);
}

TEST_F(LoaderTest, DropsASmallerLastBatchOnRequest) {
  DataLoader loader(counting(5), {.batch_size = 2, .drop_last = true});
  EXPECT_EQ(loader.size(), 2);
  EXPECT_THAT(numbers_of_pass(loader), ElementsAre(0, 1, 2, 3));
}

TEST_F(LoaderTest, KeptBatchesStayUnchanged) {
  DataLoader loader(counting(4), {.batch_size = 2});
  std::vector<at::Tensor> kept;
  for (auto& [data, target] : loader) kept.push_back(data);
  EXPECT_TRUE(at::equal(at::cat(kept), at::arange(4)));
}

TEST_F(LoaderTest, IsDistributedByDefault) {
  set_current_world({.rank = 1, .size = 2});
  DataLoader loader(counting(5), {.batch_size = 2});
  EXPECT_EQ(loader.size(), 2);
  EXPECT_THAT(numbers_of_pass(loader), ElementsAre(1, 3, 0));
  DataLoader shuffled(counting(50), {.shuffle = true});
  DistributedSampler sampler(50, {.num_replicas = 2, .rank = 1});
  EXPECT_TRUE(at::equal(at::tensor(numbers_of_pass(shuffled), at::kLong), sampler.indices()));
  shuffled.set_epoch(3);
  sampler.set_epoch(3);
  EXPECT_TRUE(at::equal(at::tensor(numbers_of_pass(shuffled), at::kLong), sampler.indices()));
}

TEST_F(LoaderTest, LoadsAllSamplesIfNotDistributed) {
  set_current_world({.rank = 1, .size = 2});
  DataLoader loader(counting(5), {.batch_size = 2, .distributed = false});
  EXPECT_THAT(numbers_of_pass(loader), ElementsAre(0, 1, 2, 3, 4));
}

TEST_F(LoaderTest, DoesNotShardAGivenSampler) {
  set_current_world({.rank = 1, .size = 2});
  DataLoader loader(counting(5), {.batch_size = 2, .sampler = std::make_shared<DistributedEvalSampler>(5)});
  EXPECT_THAT(numbers_of_pass(loader), ElementsAre(1, 3));
}

TEST_F(LoaderTest, ASeedDecidesTheOrderAtAnyWorldSize) {
  DataLoader loader(counting(50), {.shuffle = true, .seed = 9});
  DistributedSampler sampler(50, {.num_replicas = 1, .rank = 0, .seed = 9});
  EXPECT_TRUE(at::equal(at::tensor(numbers_of_pass(loader), at::kLong), sampler.indices()));
}

TEST_F(LoaderTest, AcceptsCustomBatches) {
  auto batches = std::make_shared<BatchSampler>(SequentialSampler(4), 3);
  DataLoader loader(counting(4), {.batch_sampler = batches});
  EXPECT_EQ(loader.size(), 2);
  EXPECT_THAT(numbers_of_pass(loader), ElementsAre(0, 1, 2, 3));
}

TEST_F(LoaderTest, ConcurrentPassesAreIndependent) {
  DataLoader loader(counting(4), {.batch_size = 2});
  auto outer = loader.begin();
  EXPECT_THAT(numbers_of_pass(loader), ElementsAre(0, 1, 2, 3));
  ++outer;
  EXPECT_TRUE(at::equal(outer->data, at::tensor({2, 3}, at::kLong)));
}

struct Squares {
  std::int64_t size() const { return 4; }
  Numbers get_batch(const at::Tensor& indices) const {
    const auto squares = indices * indices;
    return {squares.const_data_ptr<std::int64_t>(), squares.const_data_ptr<std::int64_t>() + squares.numel()};
  }
};

TEST_F(LoaderTest, YieldsAnyBatchType) {
  DataLoader loader(Squares(), {.batch_size = 4});
  for (const Numbers& batch : loader) EXPECT_THAT(batch, ElementsAre(0, 1, 4, 9));
}

TEST_F(LoaderTest, RejectsContradictoryOptions) {
  const auto sampler = std::make_shared<SequentialSampler>(4);
  expect_refused({.shuffle = true, .sampler = sampler}, "sampler excludes shuffle");
  expect_refused({.sampler = sampler, .seed = 1}, "sampler excludes seed");
  const auto batches = std::make_shared<BatchSampler>(sampler, 1);
  const std::string why = "batch_sampler excludes";
  expect_refused({.batch_size = 1, .batch_sampler = batches}, why);
  expect_refused({.shuffle = true, .batch_sampler = batches}, why);
  expect_refused({.sampler = sampler, .batch_sampler = batches}, why);
  expect_refused({.batch_sampler = batches, .drop_last = true}, why);
  expect_refused({.batch_sampler = batches, .seed = 1}, why);
}

TEST_F(LoaderTest, AcceptsThePatternsOfPythonPrograms) {
  const auto sampler = std::make_shared<SequentialSampler>(4);
  EXPECT_NO_THROW(DataLoader(counting(4), {.shuffle = sampler == nullptr, .sampler = sampler}));
}

TEST_F(LoaderTest, RejectsInvalidArguments) {
  expect_refused({.batch_size = 0}, "batch_size should be a positive number, but it is 0");
  expect_refused({.batch_size = -2}, "batch_size should be a positive number, but it is -2");
  EXPECT_THAT([] { DataLoader(counting(0)); }, ThrowsMessage<ArgumentError>(HasSubstr("dataset is empty")));
}

TEST_F(LoaderTest, ASamplerForAnotherDatasetIsRejected) {
  DataLoader loader(counting(4), {.sampler = std::make_shared<SequentialSampler>(5)});
  EXPECT_THAT([&] { numbers_of_pass(loader); },
              ThrowsMessage<ArgumentError>(HasSubstr("index 4 is out of range")));
}

}  // namespace
}  // namespace lockstep::data
