// SPDX-License-Identifier: BSD-3-Clause
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/device/device.h>

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(Device, TheCpuCountsAsOneAndIsAlwaysSynchronized) {
  EXPECT_EQ(device_count(c10::kCPU), 1);
  set_device(c10::kCPU);
  synchronize(c10::kCPU);
}

TEST(Device, AMissingDeviceTypeIsNamed) {
  const c10::Device none(c10::kXPU, 0);
  EXPECT_EQ(device_count(c10::kXPU), 0);
  EXPECT_THAT([&] { set_device(none); }, ThrowsMessage<ArgumentError>(HasSubstr("there is no xpu:0")));
  EXPECT_THAT([&] { synchronize(none); }, ThrowsMessage<ArgumentError>(HasSubstr("xpu:0")));
}

TEST(Device, OnlyGpusHaveAnIdentity) {
  EXPECT_EQ(device_identity(c10::kCPU), "");
  EXPECT_THAT([] { device_identity(c10::Device(c10::kCUDA, 99)); },
              ThrowsMessage<ArgumentError>(HasSubstr("there is no cuda:99")));
}

}  // namespace
}  // namespace lockstep
