// SPDX-License-Identifier: BSD-3-Clause
// Ranks that fail, and programs that cannot be started.
#include <signal.h>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher_nodes.h"
#include "support/launcher_process.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(LauncherFailure, NamesTheRankThatFailedFirstAndStopsTheOthers) {
  const TempFolder folder;
  const auto program =
      "test $RANK = 1 || exec sleep 1000; for i in $(seq 30); do echo line $i >&2; done; exit 7";
  LauncherProcess launcher(shell_ranks(3, program, {"--log-dir", folder.path(), "--redirects", "3"}));
  EXPECT_EQ(launcher.finish(), 7);
  launcher.wait_for_no_family();
  EXPECT_THAT(last_line(launcher), HasSubstr("rank 1 failed first: it exited with code 7; pid "));
  EXPECT_THAT(launcher.err(), HasSubstr("rank 1 exited with code 7; stopping the other ranks\n"));
  EXPECT_THAT(launcher.err(), HasSubstr("[lockstep]   line 30\n"));
  EXPECT_THAT(launcher.err(), HasSubstr("[lockstep] then stopped: ranks 0, 2\n"));
  EXPECT_THAT(launcher.err(),
              AllOf(HasSubstr("[lockstep]   line 11\n"), Not(HasSubstr("[lockstep]   line 10\n"))));
}

TEST(LauncherFailure, DoesNotRepeatWhatTheRankHasPrinted) {
  LauncherProcess launcher(
      shell_ranks(2, "test $RANK = 1 || exec sleep 1000; echo '[lockstep rank 1] error: odd' >&2; exit 7"));
  EXPECT_EQ(launcher.finish(), 7);
  EXPECT_THAT(launcher.err(), HasSubstr("[rank 1] [lockstep] error: odd\n")) << "the rank once";
  EXPECT_EQ(launcher.err().find("odd"), launcher.err().rfind("odd")) << launcher.err();
}

// On a busy machine several ranks may be dead before the launcher looks; here it is stopped meanwhile.
TEST(LauncherFailure, NamesTheFirstFailureOfSeveral) {
  for (const std::vector<int>& order :
       {std::vector<int>{2, 0, 1}, std::vector<int>{1, 2, 0}, std::vector<int>{0, 1, 2}}) {
    LauncherProcess launcher(shell_ranks(3, "echo pid $$ of $RANK; exec sleep 1000"));
    launcher.wait_for(" of ", 3);
    const pid_t guard = parent_of(launcher.rank_pid(0));
    ::kill(guard, SIGSTOP);
    for (const int rank : order) {
      ::kill(launcher.rank_pid(rank), SIGTERM);
      wait_for_state(launcher.rank_pid(rank), 'Z');
    }
    ::kill(guard, SIGCONT);
    EXPECT_EQ(launcher.finish(), 128 + SIGTERM);
    EXPECT_THAT(last_line(launcher), HasSubstr(fmt::format("rank {} failed first", order.front())));
  }
}

TEST(LauncherFailure, ReportsTheSignalThatKilledARank) {
  LauncherProcess crashed(
      shell_ranks(2, fmt::format("test $RANK = 0 && exec sleep 1000; exec {} segv", LAUNCHER_RANK_PROGRAM)));
  EXPECT_EQ(crashed.finish(), 128 + SIGSEGV);
  EXPECT_THAT(last_line(crashed), HasSubstr("rank 1 failed first: it was killed by SIGSEGV"));
  crashed.wait_for_no_family();

  LauncherProcess killed(shell_ranks(2, "test $RANK = 1 && kill -9 $$; exec sleep 1000"));
  EXPECT_EQ(killed.finish(), 137);
  EXPECT_THAT(last_line(killed),
              AllOf(HasSubstr("rank 1 failed first: it was killed by SIGKILL"), HasSubstr("memory")));
  killed.wait_for_no_family();
}

TEST(LauncherFailure, KillsARankThatIgnoresSigtermAfterTheGracePeriod) {
  LauncherProcess launcher(shell_ranks(2,
                                       "test $RANK = 0 && trap '' TERM; echo pid $$ of $RANK;"
                                       "while :; do sleep 1000; done",
                                       {"--grace-period", "0.2"}));
  launcher.wait_for(" of ", 2);
  ::kill(launcher.rank_pid(1), SIGKILL);
  EXPECT_EQ(launcher.finish(), 137);
  launcher.wait_for_no_family();
  EXPECT_THAT(launcher.err(), HasSubstr("still running after 0.2 s (--grace-period); killed: rank 0\n"));
  EXPECT_THAT(launcher.err(), HasSubstr("then stopped: rank 0\n"));
  EXPECT_THAT(last_line(launcher), HasSubstr("rank 1 failed first"));
}

TEST(LauncherFailure, SucceedsOnlyWhenAllRanksDo) {
  LauncherProcess fine(shell_ranks(3, "exit 0"));
  EXPECT_EQ(fine.finish(), 0);
  EXPECT_THAT(fine.err(), Not(HasSubstr("failed")));
  LauncherProcess last_fails(shell_ranks(3, "test $RANK != 2"));
  EXPECT_EQ(last_fails.finish(), 1);
}

TEST(LauncherFailure, StartsAndEndsManyRanksCleanly) {
  LauncherProcess launcher(shell_ranks(64, "echo up $RANK"));
  EXPECT_EQ(launcher.finish(), 0) << launcher.err();
  EXPECT_EQ(lines_of(launcher.out()).size(), 64u);
  launcher.wait_for_no_family();
}

TEST(LauncherFailure, LeavesNoBackgroundProcessAfterSuccess) {
  LauncherProcess launcher(shell_ranks(2, "setsid sleep 1000 & (trap '' TERM; exec sleep 1000) & echo done",
                                       {"--grace-period", "0.2"}));
  EXPECT_EQ(launcher.finish(), 0) << launcher.err();
  launcher.wait_for_no_family();
}

TEST(LauncherFailure, ReportsInOneLineThatAProgramCannotBeStarted) {
  LauncherProcess missing({"run", "--nproc-per-node", "2", "--", "no-such-program", "x"});
  EXPECT_EQ(missing.finish(), 127);
  EXPECT_EQ(lines_of(missing.err()).size(), 1u) << missing.err();
  EXPECT_THAT(missing.err(), HasSubstr("\"no-such-program\""));

  LauncherProcess folder({"run", "/"});
  EXPECT_EQ(folder.finish(), 126);
  EXPECT_EQ(lines_of(folder.err()).size(), 1u) << folder.err();
}

TEST(LauncherFailure, ReportsAMissingInterpreter) {
  const std::string script = fmt::format("{}/script{}", ::testing::TempDir(), ::getpid());
  LauncherProcess make(shell_ranks(1, fmt::format("echo '#!/no/such/shell' > {0}; chmod +x {0}", script)));
  ASSERT_EQ(make.finish(), 0);
  LauncherProcess launcher({"run", "--nproc-per-node", "2", script});
  EXPECT_EQ(launcher.finish(), 126);
  EXPECT_THAT(launcher.err(), AllOf(HasSubstr(script), HasSubstr("interpreter")));
  launcher.wait_for_no_family();
  ::unlink(script.c_str());
}

TEST(LauncherFailure, RejectsAnInvalidCommandLine) {
  LauncherProcess launcher({"run", "--nproc-per-node", "0", "true"});
  EXPECT_EQ(launcher.finish(), 2);
  EXPECT_EQ(lines_of(launcher.err()).size(), 1u) << launcher.err();
}

}  // namespace
}  // namespace lockstep::testing
