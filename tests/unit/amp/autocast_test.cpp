// SPDX-License-Identifier: BSD-3-Clause
#include <concepts>
#include <thread>

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/amp/autocast.h>
#include <lockstep/base/error.h>

namespace lockstep::amp {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

at::ScalarType type_of_product() { return torch::mm(torch::ones({2, 2}), torch::ones({2, 2})).scalar_type(); }

static_assert(!std::constructible_from<Autocast, bool>, "autocast(false) would be cuda:0");

TEST(Autocast, ComputesInTheRequestedType) {
  EXPECT_EQ(type_of_product(), torch::kFloat);
  {
    const Autocast autocast(torch::kCPU);
    EXPECT_TRUE(autocast.is_enabled());
    EXPECT_EQ(type_of_product(), torch::kBFloat16) << "the CPU's default";
  }
  {
    const Autocast autocast(torch::kCPU, {});
    EXPECT_EQ(type_of_product(), torch::kBFloat16);
  }
  {
    const Autocast autocast(torch::kCPU, {.dtype = torch::kHalf});
    EXPECT_EQ(autocast.dtype(), torch::kHalf);
    EXPECT_EQ(type_of_product(), torch::kHalf);
  }
  EXPECT_EQ(type_of_product(), torch::kFloat);
}

TEST(Autocast, NestsAndRestoresThePreviousState) {
  const Autocast outer(torch::kCPU, {.dtype = torch::kHalf, .cache_enabled = false});
  {
    const Autocast island(torch::kCPU, {.enabled = false});
    EXPECT_EQ(type_of_product(), torch::kFloat);
    EXPECT_FALSE(at::autocast::is_autocast_cache_enabled()) << "as around it";
    {
      const Autocast inner(torch::kCPU, {.dtype = torch::kBFloat16, .cache_enabled = true});
      EXPECT_EQ(type_of_product(), torch::kBFloat16);
      EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
    }
    EXPECT_EQ(type_of_product(), torch::kFloat);
  }
  EXPECT_EQ(type_of_product(), torch::kHalf);
  EXPECT_FALSE(at::autocast::is_autocast_cache_enabled());
}

TEST(Autocast, RestoresThePreviousStateAfterAnException) {
  EXPECT_THROW(
      {
        const Autocast autocast(torch::kCPU, {.dtype = torch::kHalf, .cache_enabled = false});
        throw std::runtime_error("x");
      },
      std::runtime_error);
  EXPECT_EQ(type_of_product(), torch::kFloat);
  EXPECT_EQ(at::autocast::get_autocast_dtype(torch::kCPU), torch::kBFloat16);
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
}

TEST(Autocast, DropsCastWeightsAtTheEndOfTheOutermostScope) {
  const auto weight = torch::ones({2, 2}, torch::requires_grad());
  const auto product = [&] { return torch::mm(torch::ones({2, 2}), weight)[0][0].item<float>(); };
  {
    const Autocast outer(torch::kCPU);
    {
      const Autocast inner(torch::kCPU);
      EXPECT_EQ(product(), 2);
    }
    const torch::NoGradGuard no_grad;
    weight.detach().fill_(3);
    EXPECT_EQ(product(), 2) << "the copy of before, as in PyTorch: the cache outlives the inner scope";
  }
  const Autocast next(torch::kCPU);
  EXPECT_EQ(product(), 6);
}

TEST(Autocast, StateIsPerThread) {
  const Autocast autocast(torch::kCPU);
  at::ScalarType there = torch::kHalf;
  std::thread([&] { there = type_of_product(); }).join();
  EXPECT_EQ(there, torch::kFloat);
}

TEST(Autocast, RefusesIntegers) {
  EXPECT_THAT([] { Autocast("cpu", torch::kByte); }, ThrowsMessage<ArgumentError>(HasSubstr("in Byte")));
  EXPECT_FALSE(Autocast("cpu", torch::kByte, /*enabled=*/false).is_enabled());
}

TEST(Autocast, IsDisabledWithAWarningIfUnsupported) {
  ::testing::internal::CaptureStderr();
  {
    const Autocast autocast(torch::kCPU, {.dtype = torch::kFloat});
    EXPECT_FALSE(autocast.is_enabled());
    EXPECT_EQ(type_of_product(), torch::kFloat);
  }
  const Autocast off(torch::kCPU, {.dtype = torch::kDouble, .enabled = false});
  const auto text = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, HasSubstr("cpu computes in BFloat16 or Half, not in Float; it stays off"));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("Double"))) << "none was asked for";
}

TEST(Autocast, NamesADeviceWithoutAutocast) {
  EXPECT_THAT([] { const Autocast autocast(torch::kMeta); },
              ThrowsMessage<ArgumentError>(HasSubstr("meta has no autocast")));
}

}  // namespace
}  // namespace lockstep::amp
