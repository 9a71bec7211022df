// SPDX-License-Identifier: BSD-3-Clause
#include <functional>
#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/transforms/transforms.h>

#include "support/error_of.h"

namespace lockstep::transforms {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

struct Mistake {
  std::function<void()> action;
  std::string message;
};

at::Tensor image(at::IntArrayRef sizes = {3, 8, 9}) { return at::zeros(sizes, at::kByte); }

void expect_all(const std::vector<Mistake>& mistakes) {
  for (const auto& mistake : mistakes) {
    EXPECT_THAT(error_of<ArgumentError>(mistake.action), HasSubstr(mistake.message));
  }
}

TEST(TransformErrors, NameASizeOrAPadding) {
  expect_all({
      {[] { CenterCrop({}); },
       "CenterCrop: size should be one positive number or {height, width}, but it is {}"},
      {[] {
         RandomCrop({1, 2, 3});
       },
       "RandomCrop: size should be one positive number or {height, width}, but it is {1, 2, 3}"},
      {[] { RandomResizedCrop(0); }, "RandomResizedCrop: size should be one positive number"},
      {[] { Resize(-1); }, "Resize: size should be one positive number"},
      {[] { Resize(std::nullopt); }, "Resize: without a size, max_size is needed"},
      {[] {
         Resize({4, 5}, {.max_size = 9});
       },
       "Resize: max_size limits the longer edge"},
      {[] { Resize(9, {.max_size = 9}); }, "Resize: max_size 9 should be greater than the size 9"},
      {[] {
         Resize(2, {.max_size = {3, 4}});
       },
       "Resize: max_size should be one positive number, but it is {3, 4}"},
      {[] {
         Resize(std::nullopt, {.max_size = 3})(image({3, 1, 20}));
       },
       "would become 3 pixels long and 0 wide"},
      {[] { Pad({}); }, "Pad: no padding is given"},
      {[] {
         Pad({1, 2, 3});
       },
       "Pad: padding should be 1, 2 or 4 numbers that are not negative, but it is {1, 2, 3}"},
      {[] { RandomCrop(3, {.padding = -1}); }, "RandomCrop: padding should be"},
      {[] {
         Pad(1, {.fill = {1, 2, 3}, .padding_mode = PaddingMode::edge});
       },
       "Pad: padding_mode edge takes no fill of 3 values"},
      {[] {
         Pad(1, {.fill = {1, 2}})(image());
       },
       "fill has 2 values for an image of [3, 8, 9]"},
      {[] { Pad(8, {.padding_mode = PaddingMode::reflect})(image()); },
       "mode reflect needs more pixels than an image of [3, 8, 9] has"},
      {[] { Pad(9, {.padding_mode = PaddingMode::symmetric})(image()); }, "mode symmetric needs more pixels"},
      {[] { RandomCrop(10)(image()); },
       "RandomCrop: the crop of 10 x 10 (height x width) is larger than the image, which is 8 x 9"},
  });
}

TEST(TransformErrors, NameARangeOrAProbability) {
  expect_all({
      {[] { RandomHorizontalFlip(1.5); }, "RandomHorizontalFlip: p should be in [0.0, 1.0], but it is 1.5"},
      {[] { RandomVerticalFlip(-0.5); }, "RandomVerticalFlip: p should be"},
      {[] { RandomGrayscale(2); }, "RandomGrayscale: p should be"},
      {[] { RandomErasing({.p = 2}); }, "RandomErasing: p should be"},
      {[] { RandomApply({Pad(1)}, 2); }, "RandomApply: p should be"},
      {[] {
         RandomChoice({Pad(1)}, {0.5, 0.5});
       },
       "RandomChoice: p has 2 probabilities for 1 transforms"},
      {[] { RandomChoice({Pad(1)}, 0); }, "RandomChoice: p should have no negative number and one above 0"},
      {[] { Compose(std::vector<Transform>()); }, "Compose: pass at least one transform"},
      {[] { RandomApply(std::vector<Transform>()); }, "RandomApply: pass at least one transform"},
      {[] { RandomChoice(std::vector<Transform>()); }, "RandomChoice: pass at least one transform"},
      {[] {
         RandomResizedCrop(3, {.scale = {0.5, 0.1}});
       },
       "RandomResizedCrop: scale should be {least, greatest}"},
      {[] {
         RandomResizedCrop(3, {.ratio = {0, 1}});
       },
       "RandomResizedCrop: ratio should be of positive numbers"},
      {[] {
         RandomErasing({.scale = {0.5, 1.5}});
       },
       "RandomErasing: scale should end at most at 1"},
      {[] { RandomErasing({.value = "noise"}); }, "\"random\", not \"noise\""},
      {[] {
         RandomErasing({.value = {1, 2}})(image());
       },
       "RandomErasing: value has 2 numbers for an image of [3, 8, 9]"},
      {[] { RandomRotation(-10); },
       "RandomRotation: degrees should be one number that is not negative or {least, greatest}, but it is "
       "{-10}"},
      {[] {
         RandomRotation({20, 10});
       },
       "RandomRotation: degrees should be"},
      {[] { RandomRotation(5, {.center = 3}); }, "RandomRotation: center should be {x, y}, but it is {3}"},
      {[] { RandomRotation(5, {.interpolation = InterpolationMode::BICUBIC}); },
       "RandomRotation: interpolation should be nearest or bilinear, but it is bicubic"},
      {[] {
         RandomRotation(5, {.fill = {1, 2}})(image());
       },
       "fill has 2 values for an image of [3, 8, 9]"},
      {[] {
         RandomAffine(5, {.translate = {0.1, 2}});
       },
       "RandomAffine: translate should be two numbers in [0, 1], but it is {0.1, 2}"},
      {[] {
         RandomAffine(5, {.scale = {0, 2}});
       },
       "RandomAffine: scale should be {least, greatest} of positive numbers"},
      {[] {
         RandomAffine(5, {.shear = {1, 2, 3}});
       },
       "RandomAffine: shear should be"},
  });
}

TEST(TransformErrors, NameAColorOrAPolicy) {
  expect_all({
      {[] { ColorJitter({.brightness = -1}); },
       "ColorJitter: brightness should be one number that is not negative"},
      {[] { ColorJitter({.hue = 0.6}); }, "ColorJitter: hue should be"},
      {[] {
         ColorJitter({.contrast = {1, 2, 3}});
       },
       "ColorJitter: contrast should be"},
      {[] { Grayscale(2); }, "Grayscale: num_output_channels should be 1 or 3, but it is 2"},
      {[] { GaussianBlur(4); },
       "GaussianBlur: kernel_size should be one or two odd positive numbers, but it is {4}"},
      {[] { GaussianBlur(3, {.sigma = 0}); }, "GaussianBlur: sigma should be one positive number"},
      {[] { GaussianBlur(19)(image()); },
       "the kernel of 19 columns and 19 rows is too large for an image of [3, 8, 9]"},
      {[] { RandAugment({.num_ops = -1}); }, "RandAugment: num_ops should not be negative, but it is -1"},
      {[] { RandAugment({.magnitude = 31}); }, "RandAugment: magnitude 31 is not in 0 .. 30"},
      {[] { RandAugment({.num_magnitude_bins = 1}); },
       "RandAugment: num_magnitude_bins should be at least 2"},
      {[] { TrivialAugmentWide({.num_magnitude_bins = 0}); },
       "TrivialAugmentWide: num_magnitude_bins should be"},
      {[] { AutoAugment(AutoAugmentPolicy::SVHN, {.interpolation = InterpolationMode::BICUBIC}); },
       "AutoAugment: interpolation should be"},
  });
}

TEST(TransformErrors, NameTheImage) {
  expect_all({
      {[] { RandomHorizontalFlip()(at::Tensor()); },
       "RandomHorizontalFlip: the image is an undefined tensor"},
      {[] {
         Pad(1)(image({8, 9}));
       },
       "Pad: an image should be [..., channels, height, width] with at least one pixel, but it is [8, 9]"},
      {[] {
         Resize(4)(image({3, 0, 9}));
       },
       "Resize: an image should be"},
      {[] {
         ToTensor()(at::zeros({3, 8, 9}, at::kInt));
       },
       "ToTensor: an image should be uint8 or floating point, but it is Int"},
      {[] {
         ColorJitter()(image({4, 8, 9}));
       },
       "ColorJitter: an image should have 1 or 3 channels, but it is [4, 8, 9]"},
      {[] { Normalize({0.5}, {0.5})(image()); },
       "Normalize: the image is Byte; convert it with ToTensor() first"},
      {[] {
         Compose(ToTensor(), Normalize({0.5, 0.5}, {0.5, 0.5}))(image());
       },
       "Normalize: mean has 2 values for an image of [3, 8, 9]"},
      {[] { Normalize({}, {0.5}); }, "Normalize: mean and std need one value"},
      {[] { Normalize({0.5}, {0}); }, "Normalize: std is zero"},
      {[] { ToDtype{at::kInt}; }, "ToDtype: dtype should be uint8 or a floating-point one, but it is Int"},
  });
}

TEST(TransformErrors, NameABatchThatCannotBeMixed) {
  const auto images = at::rand({4, 3, 8, 9});
  const auto labels = at::tensor({0, 1, 2, 3}, at::kLong);
  expect_all({
      {[] { MixUp({.alpha = 0}); }, "MixUp: alpha should be positive, but it is 0"},
      {[] { CutMix({.num_classes = 0}); }, "CutMix: num_classes should be positive, but it is 0"},
      {[&] { MixUp()(images, labels); }, "MixUp: labels of shape [4] are class indices; set num_classes"},
      {[&] { MixUp({.num_classes = 3})(images, labels); },
       "MixUp: labels are in 0 .. 3, but num_classes is 3"},
      {[&] { MixUp({.num_classes = 4})(images, labels.to(at::kInt)); },
       "MixUp: class indices should be int64"},
      {[&] { CutMix({.num_classes = 4})(images[0], labels); }, "but they are [3, 8, 9] and [4]"},
      {[&] { CutMix({.num_classes = 4})(images, labels.slice(0, 1)); }, "but they are [4, 3, 8, 9] and [3]"},
      {[&] {
         CutMix({.num_classes = 4})(images, at::rand({4, 5}));
       },
       "labels of shape [4, 5] do not have num_classes, which is 4"},
      {[&] { MixUp({.num_classes = 4})(images.to(at::kByte), labels); }, "MixUp: images should be of floats"},
  });
}

}  // namespace
}  // namespace lockstep::transforms
