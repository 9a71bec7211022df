// SPDX-License-Identifier: BSD-3-Clause
// Ranks that end with kExitInterrupted, and the signals that make them do so.
#include <chrono>
#include <signal.h>
#include <string>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/deadline.h"
#include "faults/launcher_nodes.h"
#include "support/launcher_process.h"
#include "support/temp_folder.h"

namespace lockstep::testing::launcher_interrupted_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const auto is_interrupted =
    AllOf(HasSubstr("[lockstep] the run was interrupted: its ranks exited with code 75; start it again"),
          Not(HasSubstr("failed")), Not(HasSubstr("restart 1 of")));

// A shell may lose a signal that comes while it starts a program.
const std::string kSaves = fmt::format("exec {} save-on-signal", LAUNCHER_RANK_PROGRAM);

TEST(LauncherInterrupted, EndsWithTheExitCodeOfTheRanksAndRestartsNone) {
  for (const char* script : {"exit 75", "test $RANK = 1 && exit 0; exit 75"}) {
    LauncherProcess launcher(shell_ranks(3, script, {"--max-restarts", "3"}));
    EXPECT_EQ(launcher.finish(), kExitInterrupted);
    EXPECT_THAT(launcher.err(), is_interrupted);
  }
}

TEST(LauncherInterrupted, AfterAStopSignal) {
  LauncherProcess launcher(helper_ranks(2, "save-on-signal"));
  launcher.wait_for(" of ", 2);
  launcher.send(SIGTERM);
  EXPECT_EQ(launcher.finish(), kExitInterrupted);
  EXPECT_THAT(launcher.err(), AllOf(is_interrupted, HasSubstr("SIGTERM: stopping all ranks")));
  launcher.wait_for_no_family();
}

TEST(LauncherInterrupted, NotIfTheSignalEndsARank) {
  LauncherProcess launcher(shell_ranks(2, "test $RANK = 1 && { echo up of; exec sleep 1000; };" + kSaves));
  launcher.wait_for(" of", 2);
  launcher.send(SIGTERM);
  EXPECT_EQ(launcher.finish(), 128 + SIGTERM);
  EXPECT_THAT(launcher.err(), Not(HasSubstr("interrupted")));
}

TEST(LauncherInterrupted, NotIfARankFailsAfterwards) {
  const TempFolder folder;
  const auto script = fmt::format(
      "test $RANK = 1 && {{ echo $$ > {0}.part; mv {0}.part {0}; exit 75; }};"
      "until test -e {0}; do sleep 0.01; done; while kill -0 $(cat {0}); do sleep 0.01; done 2> /dev/null; exit 3",
      folder.file("pid"));
  LauncherProcess launcher(shell_ranks(2, script));
  EXPECT_EQ(launcher.finish(), 3);
  EXPECT_THAT(launcher.err(), HasSubstr("before that, rank 1 exited with code 75, which says that a signal"));
  EXPECT_THAT(last_line(launcher), HasSubstr("rank 0 failed first: it exited with code 3"));
}

// The ranks take longer than the grace period.
TEST(LauncherInterrupted, AWarningIsForwardedAndNobodyIsKilled) {
  for (const int signal : {SIGUSR1, SIGUSR2}) {
    const std::string name = ::sigabbrev_np(signal);
    LauncherProcess launcher(
        helper_ranks(2, "save-on-signal", {"--grace-period", "0.1", "--max-restarts", "3"}));
    launcher.wait_for(" of ", 2);
    launcher.send(signal);
    EXPECT_EQ(launcher.finish(), kExitInterrupted);
    EXPECT_THAT(launcher.out(), AllOf(HasSubstr("[rank 0] got " + name), HasSubstr("[rank 1] got " + name)));
    EXPECT_THAT(launcher.err(),
                AllOf(is_interrupted, HasSubstr(fmt::format("SIG{}: forwarded to the ranks", name)),
                      Not(HasSubstr("killed"))));
    launcher.wait_for_no_family();
  }
}

// As with torchrun.
TEST(LauncherInterrupted, AHandledUserSignalStops) {
  LauncherProcess launcher(shell_ranks(1, "trap '' USR1; echo pid $$ of 0; exec sleep 1000",
                                       {"--grace-period", "0.1", "--signals-to-handle", "SIGTERM,SIGUSR1"}));
  launcher.wait_for(" of ");
  launcher.send(SIGUSR1);
  EXPECT_EQ(launcher.finish(), 128 + SIGUSR1);
  EXPECT_THAT(launcher.err(), HasSubstr("still running after 0.1 s (--grace-period); killed: rank 0"));
}

// From a second after the first one on: SLURM sends a signal to the launcher and to its guard.
TEST(LauncherInterrupted, ASecondSigtermKillsAtOnce) {
  LauncherProcess launcher(helper_ranks(2, "tell-signals", {"--grace-period", "3600"}));
  launcher.wait_for(" of ", 2);
  const Deadline deadline(std::chrono::seconds(60));
  while (::kill(launcher.rank_pid(0), 0) == 0) {
    ASSERT_FALSE(deadline.expired());
    launcher.send(SIGTERM);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(launcher.finish(), 128 + SIGTERM);
  EXPECT_THAT(launcher.out(), AllOf(HasSubstr("[rank 0] got TERM"), HasSubstr("[rank 1] got TERM")));
  EXPECT_THAT(launcher.err(), HasSubstr("SIGTERM again: killing all ranks"));
  launcher.wait_for_no_family();
}

// One of the launchers gets the signal: the first one coordinates them.
TEST(LauncherInterrupted, NodesEndAlike) {
  for (const int signalled : {0, 1}) {
    const auto port = free_port();
    auto first = node(numbered(0, port), kSaves);
    auto second = node(numbered(1, port), kSaves);
    first.wait_for(" of ");
    second.wait_for(" of ");
    (signalled == 0 ? first : second).send(SIGTERM);
    EXPECT_EQ(first.finish(), kExitInterrupted);
    EXPECT_EQ(second.finish(), kExitInterrupted);
    EXPECT_THAT(first.err(), HasSubstr("the run was interrupted"));
    EXPECT_THAT(second.err(), HasSubstr("the run was interrupted"));
  }
}

}  // namespace
}  // namespace lockstep::testing::launcher_interrupted_test
