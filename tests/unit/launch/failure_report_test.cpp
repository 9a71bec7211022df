// SPDX-License-Identifier: BSD-3-Clause
#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/launch/failure_report.h>

namespace lockstep::launch {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(FailureReport, EndsWithTheRankThatFailedFirst) {
  const FailureReport report{
      .first = {.rank = 2, .pid = 77, .signal = SIGSEGV, .core_dumped = true},
      .host = "box",
      .stderr_tail = {"oh", "no"},
      .later = {{.rank = 3, .signal = SIGTERM}, {.rank = 1, .code = 1}, {.rank = 0, .signal = SIGTERM}}};
  EXPECT_THAT(report_lines(report),
              ElementsAre("the last lines that rank 2 wrote to stderr:", "  oh", "  no",
                          "ended after that: ranks 0, 3 (SIGTERM), rank 1 (exit code 1)",
                          "rank 2 failed first: it was killed by SIGSEGV (core dumped); pid 77 on host box"));
}

TEST(FailureReport, SaysThatThereWasNoOutput) {
  const FailureReport report{.first = {.rank = 0, .pid = 7, .code = 3}, .host = "box"};
  EXPECT_THAT(report_lines(report),
              ElementsAre("rank 0 wrote nothing to stderr",
                          "rank 0 failed first: it exited with code 3; pid 7 on host box"));
}

TEST(FailureReport, PointsAtMemoryWhenAStrangerKilledARank) {
  const FailureReport report{.first = {.rank = 0, .signal = SIGKILL}, .host = "box"};
  EXPECT_THAT(report_lines(report).back(), AllOf(HasSubstr("SIGKILL"), HasSubstr("memory")));
}

TEST(FailureReport, ExitsLikeAShell) {
  EXPECT_EQ(exit_code({.code = 7}), 7);
  EXPECT_EQ(exit_code({.signal = SIGKILL}), 137);
}

TEST(Tail, KeepsTheLastLinesAndCutsLongOnes) {
  Tail tail;
  for (std::size_t i = 0; i < Tail::kLines + 5; ++i) tail.add(std::to_string(i));
  EXPECT_EQ(tail.lines().size(), Tail::kLines);
  EXPECT_EQ(tail.lines().front(), "5");
  tail.add(std::string(100'000, 'x'));
  EXPECT_LT(tail.lines().back().size(), Tail::kLineBytes + 10);
}

}  // namespace
}  // namespace lockstep::launch
