// SPDX-License-Identifier: BSD-3-Clause
#include "machine/command.h"

#include <signal.h>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/deadline.h"

namespace lockstep::machine {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::chrono::seconds kPatience{60};

CommandResult shell(const std::string& script, std::chrono::milliseconds timeout = kPatience) {
  return run_command({"sh", "-c", script}, timeout);
}

TEST(RunCommand, ReturnsBothStreamsAndTheExitCode) {
  const auto result = shell("echo out; echo err >&2; exit 3");
  EXPECT_EQ(result.out, "out\n");
  EXPECT_EQ(result.err, "err\n");
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.problem, "sh failed with exit code 3: err");
}

TEST(RunCommand, SuccessReportsNoProblem) {
  EXPECT_TRUE(shell("exit 0").succeeded());
  EXPECT_THAT(shell("cat").out, IsEmpty());  // stdin is /dev/null
}

TEST(RunCommand, ReadsMoreThanAPipeHolds) {
  EXPECT_EQ(shell("head -c 1000000 /dev/zero; head -c 300000 /dev/zero >&2").out.size(), 1000000U);
}

TEST(RunCommand, NamesASignal) { EXPECT_EQ(shell("kill -TERM $$").exit_code, 128 + SIGTERM); }

TEST(RunCommand, StartsWithAllSignals) {
  sigset_t signals;
  sigset_t before;
  ::sigemptyset(&signals);
  ::sigaddset(&signals, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &signals, &before);
  const auto result = shell("kill -TERM $$; echo still there");
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  EXPECT_EQ(result.exit_code, 128 + SIGTERM);
  EXPECT_THAT(result.out, IsEmpty());
}

TEST(RunCommand, ReportsWhyAProgramDoesNotStart) {
  const auto absent = run_command({"lockstep-no-such-program"}, kPatience);
  EXPECT_FALSE(absent.started);
  EXPECT_EQ(absent.exit_code, 127);
  EXPECT_THAT(absent.problem, HasSubstr("lockstep-no-such-program cannot be started: No such file"));
  EXPECT_EQ(run_command({"/"}, kPatience).exit_code, 126);
}

TEST(RunCommand, KillsACommandAndItsChildrenAtTheTimeout) {
  const auto result = shell("sleep 1000 & echo $!; wait", std::chrono::milliseconds(300));
  EXPECT_TRUE(result.timed_out);
  EXPECT_THAT(result.problem, HasSubstr("sh gave no answer within 0.3 s"));
  const Deadline deadline(kPatience);
  const pid_t child = std::stoi(result.out);
  while (::kill(child, 0) == 0 && !deadline.expired()) {
  }
  EXPECT_NE(::kill(child, 0), 0);
}

TEST(RunCommand, DoesNotWaitForBackgroundProcesses) {
  const auto result = shell("sleep 1000 & echo done");
  EXPECT_FALSE(result.timed_out);
  EXPECT_EQ(result.out, "done\n");
}

}  // namespace
}  // namespace lockstep::machine
