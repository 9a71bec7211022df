// SPDX-License-Identifier: BSD-3-Clause
#include <chrono>
#include <limits>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/base/timeout.h>

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

struct Options {
  Timeout timeout = std::chrono::minutes(30);
  std::optional<Timeout> limit = std::nullopt;
};

TEST(Timeouts, AreDurationsOrNumbersOfSeconds) {
  EXPECT_EQ((Options{.timeout = 30, .limit = 30}).timeout, milliseconds(30'000));
  EXPECT_EQ((Options{.timeout = 0.5, .limit = 0.5}).limit, milliseconds(500));
  EXPECT_EQ(Options{.timeout = std::chrono::minutes(2)}.timeout, milliseconds(120'000));
  EXPECT_EQ(Options{.limit = std::chrono::hours(1)}.limit, Timeout(3600));
  EXPECT_FALSE(Options{.timeout = 30L}.limit);
}

TEST(Timeouts, AreRoundedUpToMilliseconds) {
  EXPECT_EQ(Timeout(0.07), milliseconds(70));
  EXPECT_EQ(Timeout(0.0701), milliseconds(71));
  EXPECT_EQ(Timeout(std::chrono::nanoseconds(1)), milliseconds(1));
  EXPECT_EQ(Timeout(std::chrono::duration<double, std::milli>(2.5)), milliseconds(3));
}

TEST(Timeouts, ArePositiveAndFinite) {
  const auto expect_refused = [](auto limit, const char* value) {
    EXPECT_THAT([&] { Timeout{limit}; }, ThrowsMessage<ArgumentError>(HasSubstr(value)));
  };
  expect_refused(0, "a time limit of 0 s; it must be positive");
  expect_refused(-1.5, "-1.5 s");
  expect_refused(milliseconds(-5), "-0.005 s");
  expect_refused(std::numeric_limits<double>::quiet_NaN(), "nan s");
  expect_refused(std::numeric_limits<double>::infinity(), "inf s");
  expect_refused(milliseconds::max(), "at most 100 years");
  EXPECT_THAT([] { Options{.timeout = 0}; },
              ThrowsMessage<ArgumentError>(HasSubstr("(at timeout_test.cpp:")));
}

}  // namespace
}  // namespace lockstep
