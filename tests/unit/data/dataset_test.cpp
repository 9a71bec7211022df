// SPDX-License-Identifier: BSD-3-Clause
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/data/dataset.h>

namespace lockstep::data {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

at::Tensor some_images(at::IntArrayRef shape) { return at::randint(256, shape, at::kByte); }

TEST(TensorDataset, GathersRows) {
  const auto data = at::rand({6, 3, 2});
  const auto target = at::arange(6);
  const TensorDataset dataset(data, target);
  const auto [rows, labels] = dataset.get_batch(at::tensor({5, 0, 5}, at::kLong));
  EXPECT_TRUE(at::equal(rows, at::stack({data[5], data[0], data[5]})));
  EXPECT_TRUE(at::equal(labels, at::tensor({5, 0, 5}, at::kLong)));
}

TEST(TensorDataset, RejectsDifferentSizes) {
  EXPECT_THAT(
      [] {
        TensorDataset(at::zeros({3, 2}), at::zeros({4}));
      },
      ThrowsMessage<ArgumentError>(HasSubstr("[3, 2] and targets of shape [4]")));
  EXPECT_THROW(TensorDataset(at::Tensor(), at::zeros({4})), ArgumentError);
  EXPECT_THROW(TensorDataset(at::zeros({}), at::zeros({})), ArgumentError);
}

TEST(TensorDataset, NamesAnIndexThatIsOutOfRange) {
  const TensorDataset dataset(at::zeros({3, 2}), at::zeros({3}));
  EXPECT_THAT(
      [&] {
        dataset.get_batch(at::tensor({0, 3}, at::kLong));
      },
      ThrowsMessage<ArgumentError>(HasSubstr("index 3 is out of range for a dataset of 3")));
  EXPECT_THROW(dataset.get_batch(at::tensor({-1}, at::kLong)), ArgumentError);
  EXPECT_THROW(dataset.get_batch(at::tensor({0.5}, at::kFloat)), ArgumentError);
}

TEST(ImageDataset, ConvertsABatchAsLibTorchDoes) {
  const auto images = some_images({9, 3, 5, 4});
  const auto indices = at::tensor({8, 1, 1, 4}, at::kLong);
  const transforms::Normalize normalize({0.485, 0.456, 0.406}, {0.229, 0.224, 0.225});
  const ImageDataset dataset(images, at::arange(9), {.normalize = normalize});
  const auto mean = at::tensor({0.485, 0.456, 0.406}, at::kFloat).view({-1, 1, 1});
  const auto std = at::tensor({0.229, 0.224, 0.225}, at::kFloat).view({-1, 1, 1});
  const auto x = images.index_select(0, indices);
  const auto batch = dataset.get_batch(indices);
  EXPECT_TRUE(at::equal(batch.data, ((x.to(at::kFloat) / 255) - mean) / std));
  EXPECT_TRUE(at::equal(batch.target, indices));
}

TEST(ImageDataset, OneChannelNeedsNoChannelDimension) {
  const auto images = some_images({4, 28, 28});
  const ImageDataset plain(images, at::arange(4));
  const auto all = at::arange(4);
  EXPECT_TRUE(at::equal(plain.get_batch(all).data, images.unsqueeze(1).to(at::kFloat) / 255));
  const ImageDataset normalized(images, at::arange(4),
                                {.normalize = transforms::Normalize({0.1307}, {0.3081})});
  EXPECT_TRUE(at::equal(normalized.get_batch(all).data,
                        ((images.unsqueeze(1).to(at::kFloat) / 255) - 0.1307) / 0.3081));
}

TEST(ImageDataset, ReadsImagesThatAreNotContiguous) {
  const auto images = some_images({28, 28, 6}).permute({2, 0, 1});
  const ImageDataset dataset(images, at::arange(6));
  EXPECT_TRUE(at::equal(dataset.get_batch(at::arange(6)).data, images.unsqueeze(1).to(at::kFloat) / 255));
}

TEST(ImageDataset, RejectsInvalidArguments) {
  const auto labels = at::arange(2);
  EXPECT_THROW(ImageDataset(at::zeros({2, 4, 4}), labels), ArgumentError);
  EXPECT_THROW(ImageDataset(some_images({2, 4}), labels), ArgumentError);
  EXPECT_THROW(ImageDataset(some_images({3, 4, 4}), labels), ArgumentError);
  const auto images = some_images({2, 3, 4, 4});
  EXPECT_THROW(ImageDataset(images, labels, {.normalize = transforms::Normalize({0.1, 0.2}, {1})}),
               ArgumentError);
  EXPECT_THROW(ImageDataset(images, labels, {.normalize = transforms::Normalize({0.1}, {})}), ArgumentError);
  EXPECT_THROW(ImageDataset(images, labels, {.normalize = transforms::Normalize({0.1}, {0})}), ArgumentError);
  const ImageDataset good(images, labels);
  EXPECT_THROW(good.get_batch(at::tensor({2}, at::kLong)), ArgumentError);
}

}  // namespace
}  // namespace lockstep::data
