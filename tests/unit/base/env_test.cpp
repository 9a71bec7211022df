// SPDX-License-Identifier: BSD-3-Clause
#include "base/env.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

TEST(Env, EmptyCountsAsUnset) {
  const Env env({{"A", ""}, {"B", "x"}});
  EXPECT_FALSE(env.has("A"));
  EXPECT_EQ(env.get("B"), "x");
  EXPECT_FALSE(env.has("C"));
}

TEST(Env, NumberNamesVariableAndValueWhenWrong) {
  const Env env({{"WORLD_SIZE", "2x"}, {"RANK", "-1"}});
  EXPECT_EQ(env.get_int("RANK"), -1);
  EXPECT_EQ(env.get_int("NOT_THERE"), std::nullopt);
  EXPECT_THAT([&] { env.get_int("WORLD_SIZE"); },
              ::testing::ThrowsMessage<ArgumentError>(::testing::HasSubstr("WORLD_SIZE=\"2x\"")));
}

}  // namespace
}  // namespace lockstep
