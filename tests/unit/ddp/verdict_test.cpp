// SPDX-License-Identifier: BSD-3-Clause
#include "ddp/verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::ddp {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const Checksums kRight{1, 2, 3};
const Checksums kWrong{1, 2, 4};
const Checksums kOther{1, 5, 3};

TEST(Verdict, EqualAnswersAreRight) {
  const auto verdict = judge({{0, kRight}, {1, kRight}});
  EXPECT_THAT(verdict.wrong, IsEmpty());
  EXPECT_TRUE(verdict.is_decided);
}

TEST(Verdict, OfTwoBothMayBeWrong) {
  const auto verdict = judge({{3, kRight}, {0, kWrong}});
  EXPECT_THAT(verdict.wrong, ElementsAre(0, 3));
  EXPECT_FALSE(verdict.is_decided);
  EXPECT_EQ(verdict.first_tensor, 2);
}

TEST(Verdict, AThirdDecides) {
  for (const int wrong : {1, 2, 3}) {
    std::vector<Answer> answers;
    for (const int rank : {1, 2, 3}) answers.push_back({rank, rank == wrong ? kWrong : kRight});
    const auto verdict = judge(answers);
    EXPECT_THAT(verdict.wrong, ElementsAre(wrong));
    EXPECT_TRUE(verdict.is_decided);
    EXPECT_EQ(verdict.first_tensor, 2);
  }
}

TEST(Verdict, WithoutAMajorityNobodyIsNamedAlone) {
  EXPECT_FALSE(judge({{0, kRight}, {1, kWrong}, {2, kOther}}).is_decided);
  const auto tie = judge({{0, kRight}, {1, kWrong}, {2, kRight}, {3, kWrong}});
  EXPECT_FALSE(tie.is_decided);
  EXPECT_THAT(tie.wrong, ElementsAre(0, 1, 2, 3));
}

TEST(Verdict, SeveralMayBeWrong) {
  const auto verdict = judge({{0, kWrong}, {1, kRight}, {2, kOther}, {3, kRight}});
  EXPECT_THAT(verdict.wrong, ElementsAre(0, 2));
  EXPECT_TRUE(verdict.is_decided);
}

}  // namespace
}  // namespace lockstep::ddp
