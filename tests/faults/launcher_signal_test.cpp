// SPDX-License-Identifier: BSD-3-Clause
// Signals to the launcher, and the launcher's own sudden death.
#include <algorithm>
#include <signal.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/launcher_process.h"

namespace lockstep::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// What the launcher itself said, other than that there are more ranks than cores.
std::vector<std::string> own_lines(const LauncherProcess& launcher) {
  auto lines = lines_of(launcher.err());
  std::erase_if(lines, [](const auto& line) {
    return !line.starts_with("[lockstep] ") || line.starts_with("[lockstep] warning: 3 ranks share");
  });
  return lines;
}

class Forwarded : public ::testing::TestWithParam<int> {};

TEST_P(Forwarded, ReachesEveryRankAndDecidesTheExitCode) {
  const std::string name = fmt::format("SIG{}", ::sigabbrev_np(GetParam()));
  LauncherProcess launcher(helper_ranks(3, "tell-signal"));
  launcher.wait_for(" of ", 3);
  launcher.send(GetParam());
  EXPECT_EQ(launcher.finish(), 128 + GetParam());
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(launcher.out(), HasSubstr(fmt::format("[rank {}] got {}\n", rank, name.substr(3))));
  }
  EXPECT_THAT(own_lines(launcher), ElementsAre(HasSubstr(name + ": stopping all ranks")));
  launcher.wait_for_no_family();
}

INSTANTIATE_TEST_SUITE_P(LauncherSignal, Forwarded, ::testing::Values(SIGINT, SIGTERM, SIGHUP),
                         [](const auto& parameter) { return std::string(::sigabbrev_np(parameter.param)); });

TEST(LauncherSignal, RanksWithoutAHandlerJustEnd) {
  LauncherProcess launcher(shell_ranks(2, "echo pid $$ of $RANK; exec sleep 1000"));
  launcher.wait_for(" of ", 2);
  launcher.send(SIGINT);
  EXPECT_EQ(launcher.finish(), 130);
  EXPECT_THAT(launcher.err(), Not(HasSubstr("failed")));
  launcher.wait_for_no_family();
}

TEST(LauncherSignal, CtrlCOnATerminalReachesEachRankOnceAndASecondOneKills) {
  LauncherProcess launcher(helper_ranks(2, "tell-signals", {"--grace-period", "3600"}),
                           {.output = Output::terminal});
  launcher.wait_for(" of ", 2);
  launcher.type("\x03");
  launcher.wait_for("got INT", 2);
  launcher.type("\x03");
  EXPECT_EQ(launcher.finish(), 130);
  const auto lines = lines_of(launcher.out());
  const auto is_told = [](const std::string& line) { return line.find("got INT") != std::string::npos; };
  EXPECT_EQ(std::ranges::count_if(lines, is_told), 2) << launcher.out();
  launcher.wait_for_no_family();
}

TEST(LauncherSignal, ASecondSigintKillsAtOnce) {
  LauncherProcess launcher(helper_ranks(2, "tell-signals", {"--grace-period", "3600"}));
  launcher.wait_for(" of ", 2);
  launcher.send(SIGINT);
  launcher.wait_for("got INT", 2);
  launcher.send(SIGINT);
  EXPECT_EQ(launcher.finish(), 130);
  EXPECT_THAT(launcher.err(), HasSubstr("SIGINT again: killing all ranks"));
  launcher.wait_for_no_family();
}

TEST(LauncherSignal, ARankThatIgnoresItIsKilledAfterTheGracePeriod) {
  LauncherProcess launcher(helper_ranks(2, "tell-signals", {"--grace-period", "0.2"}));
  launcher.wait_for(" of ", 2);
  launcher.send(SIGTERM);
  EXPECT_EQ(launcher.finish(), 143);
  EXPECT_THAT(launcher.out(), HasSubstr("[rank 1] got TERM"));
  EXPECT_THAT(launcher.err(), HasSubstr("killed: rank 0, 1\n"));
  launcher.wait_for_no_family();
}

TEST(LauncherSignal, AStoppedRankEnds) {
  LauncherProcess launcher(helper_ranks(2, "tell-signal", {"--grace-period", "3600"}));
  launcher.wait_for(" of ", 2);
  ::kill(-launcher.rank_pid(1), SIGSTOP);
  wait_for_state(launcher.rank_pid(1), 'T');
  launcher.send(SIGTERM);
  EXPECT_EQ(launcher.finish(), 143);
  EXPECT_THAT(launcher.out(), HasSubstr("[rank 1] got TERM"));
}

// A shell ignores SIGINT in the jobs that a script starts with "&"; the ranks must obey all the same.
TEST(LauncherSignal, SigintWorksInABackgroundJob) {
  const std::string job = fmt::format(
      "{} run --nproc-per-node 1 --grace-period 3600 /bin/sh -c 'echo inner; exec sleep 1000' & job=$!; echo "
      "job $job; wait "
      "$job; echo code $?",
      LOCKSTEP_PROGRAM);
  LauncherProcess launcher(shell_ranks(1, job));
  launcher.wait_for("inner");
  launcher.wait_for("job ");
  const auto at = launcher.out().find("job ") + 4;
  ::kill(std::stoi(launcher.out().substr(at)), SIGINT);
  EXPECT_EQ(launcher.finish(), 0);
  EXPECT_THAT(launcher.out(), HasSubstr("code 130"));
}

TEST(LauncherSignal, HangupIsIgnoredUnderNohup) {
  const std::string job = fmt::format(
      "trap '' HUP; {} run --nproc-per-node 1 /bin/sh -c 'echo pid $$ of 0; exec sleep 1000'; echo code $?",
      LOCKSTEP_PROGRAM);
  LauncherProcess launcher(shell_ranks(1, job));
  launcher.wait_for(" of ");
  const pid_t rank = launcher.rank_pid(0);
  const pid_t inner_launcher = parent_of(parent_of(rank));
  ::kill(inner_launcher, SIGHUP);
  ::kill(rank, SIGHUP);
  // Taken after SIGHUP where both wait, so SIGHUP would decide the exit code.
  ::kill(inner_launcher, SIGTERM);
  EXPECT_EQ(launcher.finish(), 0) << launcher.err();
  EXPECT_THAT(launcher.out(), HasSubstr("code 143"));
  EXPECT_THAT(launcher.err(), Not(HasSubstr("SIGHUP")));
}

// Children, grandchildren in the background, and one that left session and process group.
const std::string kFamily =
    "(trap '' TERM INT HUP; sleep 1000) & (setsid sleep 1000 &) ; sleep 1000 & echo pid $$ of $RANK; wait";

TEST(LauncherSignal, SigkillOfTheLauncherLeavesNoDescendant) {
  LauncherProcess launcher(shell_ranks(2, kFamily));
  launcher.wait_for(" of ", 2);
  launcher.wait_for_family(2 + 2 * 4);
  launcher.send(SIGKILL);
  EXPECT_EQ(launcher.finish(), -SIGKILL);
  launcher.wait_for_no_family();
}

TEST(LauncherSignal, SigkillOfTheGuardLeavesNoDescendant) {
  LauncherProcess launcher(shell_ranks(2, kFamily));
  launcher.wait_for(" of ", 2);
  const pid_t guard = parent_of(launcher.rank_pid(0));
  ASSERT_EQ(parent_of(guard), launcher.pid());
  ::kill(guard, SIGKILL);
  EXPECT_EQ(launcher.finish(), 137);
  EXPECT_TRUE(launcher.family().empty());
  EXPECT_THAT(launcher.err(), HasSubstr("all ranks were killed"));
}

TEST(LauncherSignal, SigkillOfTheLauncherWhileItsReaderSleepsLeavesNoDescendant) {
  LauncherProcess launcher(shell_ranks(2, "echo pid $$ of $RANK; while :; do echo more; done"));
  launcher.wait_for(" of ", 2);
  launcher.send(SIGKILL);
  launcher.wait_for_no_family();
}

// A terminal that nobody reads says that it can be written to, and blocks who writes.
TEST(LauncherSignal, SigkillOfTheLauncherOnAStalledTerminalLeavesNoDescendant) {
  LauncherProcess launcher(shell_ranks(2, "echo pid $$ of $RANK; while :; do echo more; done"),
                           {.output = Output::terminal});
  launcher.wait_for(" of ", 2);
  for (int rank = 0; rank < 2; ++rank) wait_for_wait(launcher.rank_pid(rank), "pipe_write");
  launcher.send(SIGKILL);
  launcher.wait_for_no_family();
}

TEST(LauncherSignal, AClosedTerminalEndsRanksThatIgnoreIt) {
  LauncherProcess launcher(
      shell_ranks(2, "trap '' HUP TERM INT; echo pid $$ of $RANK; while :; do sleep 1000; done",
                  {"--grace-period", "3600"}),
      {.output = Output::terminal});
  launcher.wait_for(" of ", 2);
  launcher.stop_reading_stdout();
  launcher.wait_for_no_family();
}

}  // namespace
}  // namespace lockstep::testing
