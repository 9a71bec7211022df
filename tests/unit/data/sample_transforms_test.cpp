// SPDX-License-Identifier: BSD-3-Clause
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/data/files.h>
#include <lockstep/data/loader.h>
#include <lockstep/transforms/transforms.h>

#include "support/temp_folder.h"

namespace lockstep::data {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const auto kNegate = [](const at::Tensor& sample) { return -sample; };

TEST(SampleTransforms, ApplyToEachSampleAndTarget) {
  const TensorDataset dataset(at::arange(6).view({3, 2}), at::arange(3),
                              {.transform = [](const at::Tensor& sample) { return sample.sum(); },
                               .target_transform = [](std::int64_t target) { return target + 10; }});
  const auto [data, target] = dataset.get_batch(at::tensor({2, 0}, at::kLong));
  EXPECT_TRUE(at::equal(data, at::tensor({9, 1}, at::kLong)));
  EXPECT_TRUE(at::equal(target, at::tensor({12, 10}, at::kLong)));
  EXPECT_TRUE(at::equal(dataset.to(at::kCPU).get_batch(at::tensor({2}, at::kLong)).target, at::tensor({12})));
}

TEST(SampleTransforms, ATargetTransformMayReturnATensor) {
  const TensorDataset dataset(
      at::arange(3), at::arange(3),
      {.target_transform = [](const at::Tensor& target) { return torch::one_hot(target, 4); }});
  EXPECT_TRUE(at::equal(dataset.get_batch(at::tensor({2, 0}, at::kLong)).target,
                        at::tensor({0, 0, 1, 0, 1, 0, 0, 0}, at::kLong).view({2, 4})));
}

TEST(SampleTransforms, AFunctionOfAClassNeedsOneInteger) {
  const TensorDataset dataset(at::arange(3), at::rand({3, 2}),
                              {.target_transform = [](std::int64_t target) { return target; }});
  EXPECT_THAT([&] { dataset.get_batch(at::tensor({0}, at::kLong)); },
              ThrowsMessage<ArgumentError>(HasSubstr("a target is Float [2]")));
}

TEST(SampleTransforms, SamplesOfDifferentShapesAreRefused) {
  const TensorDataset dataset(at::arange(3), at::arange(3), {.transform = [](const at::Tensor& sample) {
                                return at::zeros({sample.item<std::int64_t>()});
                              }});
  EXPECT_THAT(
      [&] {
        dataset.get_batch(at::tensor({1, 2}, at::kLong));
      },
      ThrowsMessage<ArgumentError>(HasSubstr("[1] and [2]")));
}

TEST(SampleTransforms, ImagesAreBytesToATransform) {
  const auto images = at::arange(32, at::kByte).view({2, 1, 4, 4});
  const auto labels = at::arange(2);
  using namespace transforms;
  const ImageDataset dataset(images, labels, {.transform = Compose(CenterCrop(2), ToTensor())});
  const auto expected = images.slice(2, 1, 3).slice(3, 1, 3).to(at::kFloat).div(255);
  EXPECT_TRUE(at::equal(dataset.get_batch(at::arange(2)).data, expected));
  EXPECT_THAT(
      [&] {
        ImageDataset(images, labels,
                     {.normalize = transforms::Normalize({0.5}, {0.5}), .transform = CenterCrop(2)});
      },
      ThrowsMessage<ArgumentError>(HasSubstr("normalize excludes transform")));
}

TEST(SampleTransforms, DrawFromTheGeneratorOfTheSample) {
  using namespace transforms;
  const auto images = at::randint(256, {40, 3, 8, 8}, at::kByte);
  const ImageDataset dataset(images, at::arange(40), {.transform = Compose(RandomCrop(5), ToTensor())});
  std::vector<at::Tensor> passes;
  for (const int workers : {0, 1, 4}) {
    DataLoader loader(dataset, {.batch_size = 7, .num_workers = workers, .augmentation_seed = 11});
    std::vector<at::Tensor> batches;
    for (auto& batch : loader) batches.push_back(batch.data);
    passes.push_back(at::cat(batches));
  }
  EXPECT_TRUE(at::equal(passes[0], passes[1]));
  EXPECT_TRUE(at::equal(passes[0], passes[2]));
}

TEST(SampleTransforms, RowsAndTokens) {
  const testing::TempFolder folder;
  std::ofstream(folder.file("rows.csv")) << "a,b,class\n1,2,cat\n3,4,dog\n";
  const CsvDataset rows(folder.file("rows.csv"),
                        {.target_classes = true,
                         .transform = kNegate,
                         .target_transform = [](std::int64_t target) { return 7 + target; }});
  const auto [features, classes] = rows.get_batch(at::arange(2));
  EXPECT_TRUE(at::equal(features, at::tensor({-1.F, -2.F, -3.F, -4.F}).view({2, 2})));
  EXPECT_TRUE(at::equal(classes, at::tensor({7, 8}, at::kLong)));

  const std::vector<std::uint16_t> written{5, 6, 7};
  std::ofstream(folder.file("tokens.bin"))
      .write(reinterpret_cast<const char*>(written.data()), sizeof(std::uint16_t) * 3);
  const TokenDataset tokens(folder.file("tokens.bin"),
                            {.context_length = 2, .transform = kNegate, .target_transform = kNegate});
  const auto [data, target] = tokens.get_batch(at::arange(1));
  EXPECT_TRUE(at::equal(data, at::tensor({-5, -6}, at::kLong).view({1, 2})));
  EXPECT_TRUE(at::equal(target, at::tensor({-6, -7}, at::kLong).view({1, 2})));
}

}  // namespace
}  // namespace lockstep::data
