// SPDX-License-Identifier: BSD-3-Clause
#include <csignal>

#include <gtest/gtest.h>

#include "launch/failure_report.h"

namespace lockstep::launch {
namespace {

FailureReport cause(int rank) { return {.first = {.rank = rank, .code = 7}, .stderr_tail = {"the cause"}}; }

FailureReport consequence(int rank) {
  return {.first = {.rank = rank, .code = 1},
          .stderr_tail = {"failed because another rank is gone"},
          .lost_peer = true};
}

TEST(FailureTracker, ReportsTheFirst) {
  FailureTracker failures;
  EXPECT_FALSE(failures.any());
  EXPECT_FALSE(failures.summary(std::nullopt));
  failures.add(cause(2));
  failures.add(cause(1));
  EXPECT_FALSE(failures.may_be_consequence());
  EXPECT_EQ(failures.first().first.rank, 2);
  EXPECT_EQ(failures.summary(std::nullopt)->later.front().rank, 1);
}

TEST(FailureTracker, ReportsTheCauseBeforeItsConsequence) {
  FailureTracker failures;
  failures.add(consequence(0));
  EXPECT_TRUE(failures.may_be_consequence());
  failures.add(consequence(3));
  failures.add(cause(1));
  EXPECT_FALSE(failures.may_be_consequence());
  const auto summary = failures.summary(std::nullopt);
  EXPECT_EQ(summary->first.rank, 1);
  ASSERT_EQ(summary->later.size(), 2u);
}

TEST(FailureTracker, KeepsTheRanksThatFinishedBeforeTheFirstFailure) {
  FailureTracker failures;
  failures.add_finished(2);
  failures.add_finished(1);
  failures.add(consequence(0));
  failures.add_finished(3);
  EXPECT_EQ(failures.summary(std::nullopt)->finished, (std::vector<int>{1, 2}));
}

TEST(FailureTracker, IsInterruptedUnlessARankFailsOrIsStopped) {
  FailureTracker interrupted;
  EXPECT_FALSE(interrupted.interrupted());
  interrupted.add_interrupted(3);
  interrupted.add_interrupted(1);
  interrupted.add_finished(0);
  EXPECT_TRUE(interrupted.interrupted());
  auto stopped = interrupted;
  stopped.add_stopped(2);
  EXPECT_FALSE(stopped.interrupted());
  EXPECT_TRUE(stopped.interrupted(/*with_stopped=*/true));
  stopped.add_stopped(4, /*killed=*/true);
  EXPECT_FALSE(stopped.interrupted(/*with_stopped=*/true));
  auto later = interrupted;
  later.add_later({.rank = 2, .code = 3});
  EXPECT_FALSE(later.interrupted());
  interrupted.add(cause(2));
  EXPECT_FALSE(interrupted.interrupted());
  EXPECT_EQ(interrupted.summary(std::nullopt)->interrupted, (std::vector<int>{1, 3}));
}

TEST(FailureTracker, KeepsLocalFailuresUnderTheReportOfOtherNodes) {
  FailureTracker failures;
  failures.add(cause(4));
  failures.add_later({.rank = 5, .code = 3});
  failures.add_stopped(7);
  failures.add_stopped(6);
  const auto summary = failures.summary(cause(0));
  EXPECT_EQ(summary->first.rank, 0);
  ASSERT_EQ(summary->later.size(), 2u);
  EXPECT_EQ(summary->later[0].rank, 4);
  EXPECT_EQ(summary->later[1].rank, 5);
  EXPECT_EQ(summary->stopped, (std::vector<int>{6, 7}));
  EXPECT_EQ(failures.summary(FailureReport{.reason = "node 1 was lost"})->later.front().rank, 4);
  EXPECT_EQ(failures.summary(cause(4))->later.size(), 1u) << "the report is of this node";
}

}  // namespace
}  // namespace lockstep::launch
