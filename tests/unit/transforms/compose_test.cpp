// SPDX-License-Identifier: BSD-3-Clause
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <lockstep/transforms/transforms.h>

namespace lockstep::transforms {
namespace {

static_assert(ImageTransform<Transform>);
static_assert(ImageTransform<Compose<>>);
static_assert(ImageTransform<Compose<CenterCrop, Transform>>);
static_assert(ImageTransform<RandomApply>);
static_assert(ImageTransform<RandomChoice>);
static_assert(!ImageTransform<MixUp>);

OptionalGenerator generator_of(std::uint64_t seed) { return at::make_generator<at::CPUGeneratorImpl>(seed); }

// As a decoder returns it.
at::Tensor channels_last_image(std::int64_t channels) {
  return at::randint(256, {18, 14, channels}, at::kByte).movedim(-1, 0);
}

Normalize imagenet() { return {{0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}}; }

TEST(Compose, PrintsItselfAsPythonDoes) {
  EXPECT_EQ(Compose(CenterCrop(4)).to_string(), "Compose(    CenterCrop(size=(4, 4)))");
  EXPECT_EQ(Compose(Resize(3), Compose(CenterCrop({4, 5}), Grayscale())).to_string(),
            "Compose(\n"
            "      Resize(size=[3], interpolation=bilinear, antialias=True)\n"
            "      Compose(\n"
            "        CenterCrop(size=(4, 5))\n"
            "        Grayscale(num_output_channels=1)\n"
            "  )\n"
            ")");
  EXPECT_EQ(RandomApply({CenterCrop(4)}, 0.3).to_string(), "RandomApply(    CenterCrop(size=(4, 4)))");
}

TEST(Compose, BuiltAtRunTimeIsTheSame) {
  const Compose known(RandomResizedCrop(8), RandomHorizontalFlip(), ToTensor(), imagenet());
  const Compose built({RandomResizedCrop(8), RandomHorizontalFlip(), ToTensor(), imagenet()});
  static_assert(std::same_as<decltype(built), const Compose<>>);
  EXPECT_EQ(known.to_string(), built.to_string());
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const auto image = channels_last_image(3);
    EXPECT_TRUE(at::equal(known(image, generator_of(seed)), built(image, generator_of(seed))));
  }
}

TEST(Compose, ConvertsAndNormalizesInOnePass) {
  const auto image = channels_last_image(3);
  for (const bool scale : {false, true}) {
    const ToDtype conversion(at::kFloat, {.scale = scale});
    const auto expected = imagenet()(conversion(image));
    ASSERT_FALSE(expected.is_contiguous()) << "two passes keep the strides";
    for (const auto& transform : {Transform(Compose(conversion, imagenet())),
                                  Transform(Compose({CenterCrop({18, 14}), conversion, imagenet()}))}) {
      const auto found = transform(image);
      EXPECT_TRUE(found.is_contiguous());
      EXPECT_TRUE(at::equal(found, expected));
    }
  }
}

TEST(Compose, OnePassTakesAnyStridesBatchesAndChannels) {
  const Compose each(ToTensor(), Normalize({0.5}, {0.25}));
  for (const std::int64_t channels : {1, 2, 3, 5}) {
    const auto images = at::randint(256, {4, channels, 9, 8}, at::kByte);
    for (const auto& view : {images, images.transpose(-1, -2), images.flip(-1).slice(-1, 1, 7, 2),
                             images.slice(0, 0, 4, 2), images.unsqueeze(0), images[1]}) {
      EXPECT_TRUE(at::equal(each(view), view.to(at::kFloat).div(255).sub(0.5).div(0.25)));
    }
  }
}

TEST(Compose, FloatsAndDoublesPassTheConversion) {
  const auto image = at::rand({3, 4, 5}, at::kDouble);
  EXPECT_TRUE(at::equal(Compose(ToTensor(), imagenet())(image), imagenet()(image)));
}

TEST(Compose, TakesAnyFunction) {
  const auto twice = [](const at::Tensor& image) { return image.mul(2); };
  const Compose transform({twice, CenterCrop(1), Transform(twice)});
  EXPECT_EQ(transform.to_string(),
            "Compose(\n      Lambda()\n      CenterCrop(size=(1, 1))\n      Lambda()\n)");
  EXPECT_EQ(transform(at::ones({1, 3, 3})).item<float>(), 4);
  EXPECT_EQ(Transform(CenterCrop(1)).target<Pad>(), nullptr);
  EXPECT_NE(Transform(CenterCrop(1)).target<CenterCrop>(), nullptr);
}

TEST(Normalize, TakesOneNumberForAllChannels) {
  const auto image = at::rand({1, 4, 5});
  EXPECT_TRUE(at::equal(Normalize(0.5, 2)(image), Normalize({0.5}, {2})(image)));
}

TEST(Normalize, InplaceOverwritesTheImage) {
  const auto image = at::rand({3, 4, 5});
  const auto expected = imagenet()(image);
  const auto found = Normalize({0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}, {.inplace = true})(image);
  EXPECT_TRUE(found.is_same(image));
  EXPECT_TRUE(at::equal(image, expected));
}

TEST(RandomErasing, InplaceOverwritesTheImage) {
  const auto image = at::ones({3, 30, 30});
  const auto erased = RandomErasing({.p = 1, .inplace = true})(image, generator_of(1));
  EXPECT_TRUE(erased.is_same(image));
  EXPECT_LT(image.sum().item<float>(), 2700);
}

}  // namespace
}  // namespace lockstep::transforms
