// SPDX-License-Identifier: BSD-3-Clause
// Ranks that fail, and programs that cannot be started.
#include <signal.h>

#include <regex>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher_process.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string last_line(const LauncherProcess& launcher) {
  const auto lines = lines_of(launcher.err());
  return lines.empty() ? "" : lines.back();
}

TEST(LauncherFailure, NamesTheRankThatFailedFirstAndStopsTheOthers) {
  LauncherProcess launcher(
      shell_ranks(3, "test $RANK = 1 || exec sleep 1000; for i in $(seq 30); do echo line $i >&2; done; exit 7"));
  EXPECT_EQ(launcher.finish(), 7);
  launcher.wait_for_no_family();
  EXPECT_THAT(last_line(launcher), HasSubstr("rank 1 failed first: it exited with code 7; pid "));
  EXPECT_THAT(launcher.err(), HasSubstr("rank 1 exited with code 7; stopping the other ranks\n"));
  EXPECT_THAT(launcher.err(), HasSubstr("[lockstep]   line 30\n[lockstep] ended after that: ranks 0, 2 (SIGTERM)\n"));
  EXPECT_THAT(launcher.err(), AllOf(HasSubstr("[lockstep]   line 11\n"), Not(HasSubstr("[lockstep]   line 10\n"))));
}

// The others die of the first death at once, so that all may be dead before the launcher looks.
TEST(LauncherFailure, NamesTheFirstAlsoWhenTheOthersFollowImmediately) {
  for (int attempt = 0; attempt < 10; ++attempt) {
    const std::string script =
        "if test $RANK = 2; then mkfifo $FIFO.2; echo $$ > $FIFO; read line < $FIFO.2; exit 5; fi;"
        "test $RANK = 1 && exec sleep 1000;"
        "mkfifo $FIFO; read pid < $FIFO; echo go > $FIFO.2; while kill -0 $pid; do :; done 2>/dev/null; exit 1";
    const std::string fifo = fmt::format("{}/first{}.{}", ::testing::TempDir(), ::getpid(), attempt);
    // Both name their fifo before they use the other's.
    const std::string prepared = "while ! test -p $FIFO && test $RANK = 2; do :; done; " + script;
    LauncherProcess launcher(shell_ranks(3, prepared), {.env = {{"FIFO", fifo}}});
    EXPECT_EQ(launcher.finish(), 5) << launcher.err();
    EXPECT_THAT(last_line(launcher), HasSubstr("rank 2 failed first"));
    ::unlink(fifo.c_str());
    ::unlink((fifo + ".2").c_str());
  }
}

TEST(LauncherFailure, TellsTheSignalThatKilledARank) {
  LauncherProcess crashed(
      shell_ranks(2, fmt::format("test $RANK = 0 && exec sleep 1000; exec {} segv", LAUNCHER_RANK_PROGRAM)));
  EXPECT_EQ(crashed.finish(), 128 + SIGSEGV);
  EXPECT_THAT(last_line(crashed), HasSubstr("rank 1 failed first: it was killed by SIGSEGV"));
  crashed.wait_for_no_family();

  LauncherProcess killed(shell_ranks(2, "test $RANK = 1 && kill -9 $$; exec sleep 1000"));
  EXPECT_EQ(killed.finish(), 137);
  EXPECT_THAT(last_line(killed), AllOf(HasSubstr("rank 1 failed first: it was killed by SIGKILL"), HasSubstr("memory")));
  killed.wait_for_no_family();
}

TEST(LauncherFailure, KillsARankThatIgnoresSigtermAfterTheGracePeriod) {
  LauncherProcess launcher(shell_ranks(
      2, "test $RANK = 1 && { read line < $FIFO; exit 3; }; trap '' TERM; echo go > $FIFO; while :; do sleep 1000; done",
      {"--grace-period", "0.2"}));
  launcher.send(0);
  SUCCEED();
  EXPECT_NE(launcher.finish(), 0);
}

TEST(LauncherFailure, SucceedsOnlyWhenAllRanksDo) {
  LauncherProcess fine(shell_ranks(3, "exit 0"));
  EXPECT_EQ(fine.finish(), 0);
  EXPECT_THAT(fine.err(), Not(HasSubstr("failed")));
  LauncherProcess last_fails(shell_ranks(3, "test $RANK != 2"));
  EXPECT_EQ(last_fails.finish(), 1);
}

TEST(LauncherFailure, LeavesNoBackgroundProcessAfterSuccess) {
  LauncherProcess launcher(
      shell_ranks(2, "setsid sleep 1000 & (trap '' TERM; exec sleep 1000) & echo done", {"--grace-period", "0.2"}));
  EXPECT_EQ(launcher.finish(), 0) << launcher.err();
  launcher.wait_for_no_family();
}

TEST(LauncherFailure, TellsInOneLineThatAProgramCannotBeStarted) {
  LauncherProcess missing({"run", "--nproc-per-node", "2", "--", "no-such-program", "x"});
  EXPECT_EQ(missing.finish(), 127);
  EXPECT_EQ(lines_of(missing.err()).size(), 1u) << missing.err();
  EXPECT_THAT(missing.err(), HasSubstr("\"no-such-program\""));

  LauncherProcess folder({"run", "/"});
  EXPECT_EQ(folder.finish(), 126);
  EXPECT_EQ(lines_of(folder.err()).size(), 1u) << folder.err();
}

TEST(LauncherFailure, TellsThatAnInterpreterIsMissing) {
  const std::string script = fmt::format("{}/script{}", ::testing::TempDir(), ::getpid());
  LauncherProcess make(shell_ranks(1, fmt::format("echo '#!/no/such/shell' > {0}; chmod +x {0}", script)));
  ASSERT_EQ(make.finish(), 0);
  LauncherProcess launcher({"run", "--nproc-per-node", "2", script});
  EXPECT_EQ(launcher.finish(), 126);
  EXPECT_THAT(launcher.err(), AllOf(HasSubstr(script), HasSubstr("interpreter")));
  launcher.wait_for_no_family();
  ::unlink(script.c_str());
}

TEST(LauncherFailure, RefusesAWrongCommandLine) {
  LauncherProcess launcher({"run", "--nproc-per-node", "0", "true"});
  EXPECT_EQ(launcher.finish(), 2);
  EXPECT_EQ(lines_of(launcher.err()).size(), 1u) << launcher.err();
}

}  // namespace
}  // namespace lockstep::testing
