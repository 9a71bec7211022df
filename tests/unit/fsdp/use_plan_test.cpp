// SPDX-License-Identifier: BSD-3-Clause
#include "fsdp/use_plan.h"

#include <initializer_list>
#include <optional>

#include <gtest/gtest.h>

namespace lockstep::fsdp {
namespace {

constexpr auto kForward = UsePlan::forward, kBackward = UsePlan::backward;
constexpr auto kNone = std::nullopt;

class Plan : public testing::Test {
 protected:
  Plan() {
    for (int group = 0; group < 3; ++group) plan.add_group();
  }
  void use(std::initializer_list<std::size_t> groups) {
    for (const auto group : groups) plan.use(group, /*learns=*/true);
  }
  UsePlan plan;
};

TEST_F(Plan, ExpectsWhatTheLastPassOfItsKindUsed) {
  use({0, 1, 0, 2});
  EXPECT_EQ(plan.next(kForward), kNone) << "nothing is learned yet";
  EXPECT_FALSE(plan.expects(0, kForward));
  plan.end(kForward);
  EXPECT_EQ(plan.current(), kNone);
  use({2, 0});
  plan.end(kBackward);

  use({0});
  EXPECT_EQ(plan.current(), 0U);
  EXPECT_EQ(plan.next(kForward), 1U);
  EXPECT_TRUE(plan.expects(0, kForward)) << "used twice in the last forward";
  use({1, 0});
  EXPECT_EQ(plan.next(kForward), 2U);
  EXPECT_FALSE(plan.expects(0, kForward));
  use({2});
  EXPECT_EQ(plan.next(kForward), kNone) << "the last use of the forward";
  plan.end(kForward);
  use({2});
  EXPECT_EQ(plan.next(kBackward), 0U);
}

TEST_F(Plan, ForetellsNothingInAnotherOrder) {
  use({0, 1, 2});
  plan.end(kForward);
  use({1});
  EXPECT_EQ(plan.next(kForward), kNone);
  use({0});
  EXPECT_EQ(plan.next(kForward), kNone);
  use({2});
  EXPECT_EQ(plan.next(kForward), kNone);
  plan.end(kForward);
  use({1});
  EXPECT_EQ(plan.next(kForward), 0U) << "the new order is learned";
}

TEST_F(Plan, UsesWithoutGradientsTeachNothing) {
  use({0, 1});
  plan.end(kForward);
  plan.use(0, /*learns=*/false);
  EXPECT_EQ(plan.current(), 0U);
  EXPECT_TRUE(plan.expects(0, kForward));
  EXPECT_EQ(plan.next(kForward), kNone);
  use({0});
  EXPECT_EQ(plan.next(kForward), 1U);
}

}  // namespace
}  // namespace lockstep::fsdp
