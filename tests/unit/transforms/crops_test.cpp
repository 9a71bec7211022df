// SPDX-License-Identifier: BSD-3-Clause
#include <type_traits>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <lockstep/transforms/transforms.h>

namespace lockstep::transforms {
namespace {

OptionalGenerator seeded(std::uint64_t seed) { return at::make_generator<at::CPUGeneratorImpl>(seed); }

at::Tensor part_of(const at::Tensor& image, const Box& box) {
  return image.narrow(-2, box.top, box.height).narrow(-1, box.left, box.width);
}

TEST(CenterCrop, TellsItsBox) {
  EXPECT_EQ(CenterCrop(4).get_params(9, 8), (Box{.top = 2, .left = 2, .height = 4, .width = 4}));
  EXPECT_EQ(CenterCrop({4, 9}).get_params(7, 6), (Box{.top = 2, .left = -1, .height = 4, .width = 9}));
}

TEST(CenterCrop, IsAViewWhereTheImageIsLargeEnough) {
  const auto image = at::zeros({3, 9, 8}, at::kByte);
  EXPECT_TRUE(CenterCrop(4)(image).is_alias_of(image));
  EXPECT_FALSE(CenterCrop(10)(image).is_alias_of(image));
}

TEST(RandomCrop, TellsItsBox) {
  const RandomCrop crop({4, 3});
  const auto image = at::randint(256, {3, 20, 30}, at::kByte);
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto box = crop.get_params(20, 30, seeded(seed));
    EXPECT_TRUE(at::equal(crop(image, seeded(seed)), part_of(image, box)));
  }
}

TEST(RandomCrop, ABoolIsNotAPadding) {
  static_assert(std::is_constructible_v<RandomCrop, int, int>);
  static_assert(!std::is_constructible_v<RandomCrop, int, bool>);
  EXPECT_NE(RandomCrop({32, 4}).to_string(), RandomCrop(32, 4).to_string());
  EXPECT_EQ(RandomCrop(32, 4).to_string(), RandomCrop(32, {.padding = 4}).to_string());
}

TEST(RandomCrop, BoxesCountFromTheImageWithoutPadding) {
  const auto image = at::randint(256, {3, 5, 6}, at::kByte);
  const auto padded = Pad({2, 1})(image);
  const RandomCrop crop(4, {.padding = {2, 1}});
  bool begins_before = false;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    auto box = crop.get_params(5, 6, seeded(seed));
    begins_before = begins_before || box.top < 0 || box.left < 0;
    box.top += 1;
    box.left += 2;
    EXPECT_TRUE(at::equal(crop(image, seeded(seed)), part_of(padded, box)));
  }
  EXPECT_TRUE(begins_before);
}

TEST(RandomResizedCrop, TellsItsBox) {
  const RandomResizedCrop crop({7, 8}, {.scale = {0.1, 0.5}});
  const auto image = at::randint(256, {3, 20, 30}, at::kByte);
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto box = crop.get_params(20, 30, seeded(seed));
    EXPECT_TRUE(at::equal(crop(image, seeded(seed)), Resize({7, 8})(part_of(image, box))));
  }
}

TEST(Resize, KeepsTheLayoutOfAnImage) {
  const auto image = at::randint(256, {20, 30, 3}, at::kByte).movedim(-1, 0);
  EXPECT_EQ(Resize({7, 8})(image).strides(), (at::IntArrayRef{1, 24, 3}));
  EXPECT_EQ(Resize({7, 8})(image.contiguous()).strides(), (at::IntArrayRef{56, 8, 1}));
}

}  // namespace
}  // namespace lockstep::transforms
