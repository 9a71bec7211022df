// SPDX-License-Identifier: BSD-3-Clause
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <type_traits>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/data/loader.h>
#include <lockstep/data/subset.h>
#include <lockstep/data/vision.h>

#include "support/error_of.h"
#include "support/temp_folder.h"

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
  DataLoader loader(Subset(numbered(10), {9, 8, 7}), {.batch_size = 2, .num_workers = 1});
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

TEST(Guesses, ABracedListSplitsIntoNamedParts) {
  const auto [train, val] = random_split(numbered(10), {0.8, 0.2});
  EXPECT_EQ(train.size(), 8);
  EXPECT_EQ(val.size(), 2);
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(3);
  auto [first, second, third] = random_split(numbered(10), {5, 3, 2}, generator);
  EXPECT_EQ(third.size(), 2);
  const auto [half, rest] = random_split(numbered(10), {0.5, 0.5}, {.generator = generator});
  EXPECT_EQ(half.size() + rest.size(), 10);
  EXPECT_EQ(DataLoader(first, 4, true).size(), 2);
  const std::vector<double> lengths{0.5, 0.5};
  EXPECT_EQ(random_split(numbered(10), lengths).back().size(), 5);
  EXPECT_EQ(random_split(numbered(10), std::vector{0.8, 0.2}, {.generator = generator}).front().size(), 8);
}

TEST(Guesses, OnlyABoolIsAShuffle) {
  using Loader = DataLoader<TensorDataset>;
  static_assert(std::is_constructible_v<Loader, TensorDataset, int>);
  static_assert(std::is_constructible_v<Loader, TensorDataset, std::int64_t, bool>);
  static_assert(!std::is_constructible_v<Loader, TensorDataset, int, int>);
  static_assert(!std::is_constructible_v<Loader, TensorDataset, int, RandomSampler*>);
  static_assert(!std::is_constructible_v<Loader, TensorDataset, bool>);
  static_assert(!std::is_constructible_v<Loader, TensorDataset, bool, bool>);
  EXPECT_EQ(DataLoader(numbered(10), 4).size(), 3);
}

TEST(Guesses, SubscriptsReturnOneSample) {
  const auto dataset = numbered(10);
  const auto [x, y] = dataset[3];
  EXPECT_TRUE(at::equal(x, at::full({1}, 3, at::kLong)));
  EXPECT_EQ(y.item<int>(), 30);
  EXPECT_EQ(Subset(dataset, {7, 2})[1].target.item<int>(), 20);
  EXPECT_EQ(Subset(Subset(dataset, {7, 2}), {0})[0].target.item<int>(), 70);
  EXPECT_THAT(error_of([&] { (void)dataset[10]; }),
              HasSubstr("index 10 is out of range for a dataset of 10 samples"));
  EXPECT_THAT(error_of([&] { (void)Subset(dataset, {7, 2})[2]; }), HasSubstr("index 2 is out of range"));
}

TEST(Guesses, ASplitOfADatasetWithGet) {
  struct Tens : Dataset {
    Example get(std::size_t index) override {
      const auto number = static_cast<std::int64_t>(index);
      return {at::full({2}, number), at::scalar_tensor(10 * number, at::kLong)};
    }
    std::size_t size() const override { return 10; }
  };
  auto [train, val] = random_split(Tens(), {0.7, 0.3});
  std::vector<at::Tensor> targets;
  for (auto& part : {train, val}) {
    for (auto& [x, y] : DataLoader(part, {.batch_size = 4, .num_workers = 1})) {
      EXPECT_TRUE(at::equal(x.select(1, 0).mul(10).to(at::kLong), y));
      targets.push_back(y);
    }
  }
  EXPECT_TRUE(at::equal(std::get<0>(at::cat(targets).sort()), at::arange(10).mul(10)));
  EXPECT_EQ(val[0].target.item<std::int64_t>(), 10 * val.indices()[0].item<std::int64_t>());
  static_assert(!std::is_constructible_v<Subset<Tens>, std::shared_ptr<const Tens>, at::Tensor>);
  EXPECT_EQ(Subset(std::make_shared<Tens>(), at::tensor({4}, at::kLong))[0].target.item<int>(), 40);
  const auto constant = std::make_shared<const TensorDataset>(numbered(10));
  EXPECT_EQ(Subset(constant, at::tensor({4}, at::kLong))[0].target.item<int>(), 40);
  const Subset subset(Tens(), std::vector<int>{7, 2});
  EXPECT_THAT(error_of([&] { subset.get_batch(at::empty({0}, at::kLong)); }), HasSubstr("there is no index"));
  const ConcatDataset both({Tens(), Tens()});
  EXPECT_TRUE(
      at::equal(both.get_batch(at::tensor({12, 3}, at::kLong)).target, at::tensor({20, 30}, at::kLong)));
  EXPECT_EQ(ConcatDataset(subset, train).size(), 9);
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
  EXPECT_THROW(random_split(numbered(10), std::vector<double>()), ArgumentError);
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

// With targets, and a target for each sample that names it.
struct Flowers {
  std::int64_t size() const { return 10; }
  Batch get_batch(const at::Tensor& indices) const { return {.data = indices, .target = indices}; }
  at::Tensor targets() const { return at::arange(10).remainder(2); }
};

TEST(TrainValSplit, TakesAPartOfEachClass) {
  const auto [train, val] = train_val_split(Flowers(), {.val_fraction = 0.4});
  EXPECT_EQ(&train.dataset(), &val.dataset());
  // Of random.seed(0), random.sample([0, 2, 4, 6, 8], 2), random.sample([1, 3, 5, 7, 9], 2).
  EXPECT_TRUE(at::equal(val.indices(), at::tensor({6, 8, 1, 5}, at::kLong)));
  EXPECT_TRUE(at::equal(train.indices(), at::tensor({0, 2, 4, 3, 7, 9}, at::kLong)));
  EXPECT_EQ(train_val_split(Flowers()).second.size(), 2);
}

TEST(TrainValSplit, RejectsWhatCannotBeSplit) {
  const auto labels = at::arange(10);
  EXPECT_THAT(error_of([&] { train_val_split_indices(labels, {.val_fraction = 1.5}); }),
              HasSubstr("val_fraction is 1.5; it should be between 0 and 1"));
  EXPECT_THROW(train_val_split_indices(labels, {.val_fraction = -0.1}), ArgumentError);
  EXPECT_THROW(train_val_split_indices(labels, {.val_fraction = std::nan("")}), ArgumentError);
  EXPECT_THAT(error_of([] { train_val_split_indices(at::ones({3})); }),
              HasSubstr("train_val_split: labels should be a 1-dimensional tensor of integers"));
}

class ClassIndicesTest : public ::testing::Test {
 protected:
  std::string refusal_of(const std::string& text) const {
    std::ofstream(folder_ / "classes.json") << text;
    return error_of<DataError>([this] { read_class_indices(folder_ / "classes.json"); });
  }
  lockstep::testing::TempFolder folder_;
};

TEST_F(ClassIndicesTest, ReplaceAnOldFile) {
  const auto file = folder_ / "classes.json";
  write_class_indices(file, {"daisy", "rose", "tulip"});
  write_class_indices(file, {"daisy"});
  EXPECT_THAT(read_class_indices(file), ::testing::ElementsAre("daisy"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 1);
}

TEST_F(ClassIndicesTest, NameTheFileInErrors) {
  EXPECT_THAT(refusal_of("[\"daisy\"]"), HasSubstr("classes.json: is not a JSON object"));
  EXPECT_THAT(refusal_of("{\"0\": \"daisy\""), HasSubstr("classes.json: is not a JSON object"));
  EXPECT_THAT(refusal_of(""), HasSubstr("classes.json: is not a JSON object"));
  EXPECT_THAT(refusal_of("{\"0\": \"daisy\", \"2\": \"rose\"}"),
              HasSubstr("classes.json: has 2 entries, but no class name for \"1\""));
  EXPECT_THAT(refusal_of("{\"0\": 5}"), HasSubstr("no class name for \"0\""));
  EXPECT_THAT(error_of<DataError>([this] { read_class_indices(folder_ / "none.json"); }),
              HasSubstr("none.json: cannot be opened"));
  EXPECT_THAT(error_of<DataError>([this] { write_class_indices(folder_ / "none/classes.json", {}); }),
              HasSubstr("none/classes.json: the class indices cannot be written"));
  EXPECT_THAT(error_of<ArgumentError>([this] { write_class_indices(folder_ / "classes.json", {"a\xff"}); }),
              HasSubstr("is not valid UTF-8"));
}

}  // namespace
}  // namespace lockstep::data
