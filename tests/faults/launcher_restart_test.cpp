// SPDX-License-Identifier: BSD-3-Clause
// Ranks that are started again, on one node and on several.
#include <array>
#include <fstream>
#include <memory>
#include <signal.h>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/sockets.h"
#include "faults/launcher_nodes.h"
#include "support/launcher_process.h"
#include "support/temp_folder.h"

namespace lockstep::testing::launcher_restart_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(LauncherRestart, StartsAllRanksAgainWithANewPort) {
  const TempFolder folder;
  // Rank 1 fails after rank 0 has printed a line.
  LauncherProcess launcher(shell_ranks(
      2,
      fmt::format("echo attempt $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS port $MASTER_PORT;"
                  "test $TORCHELASTIC_RESTART_COUNT = 2 && exit 0; spoken={}.$TORCHELASTIC_RESTART_COUNT;"
                  "test $RANK = 0 && {{ : > $spoken; exec sleep 1000; }};"
                  "while ! test -e $spoken; do sleep 0.01; done; exit 3",
                  folder.file("spoken")),
      {"--max-restarts", "3"}));
  EXPECT_EQ(launcher.finish(), 0) << launcher.err();
  EXPECT_THAT(launcher.out(), AllOf(HasSubstr("[rank 0] attempt 0 of 3"),
                                    HasSubstr("[rank 1] attempt 2 of 3"), Not(HasSubstr("attempt 3"))));
  EXPECT_THAT(launcher.err(),
              AllOf(HasSubstr("rank 1 exited with code 3; restart 1 of 3; stopping the other ranks\n"),
                    HasSubstr("restart 2 of 3"), Not(HasSubstr("failed first"))));
  launcher.wait_for_no_family();
}

TEST(LauncherRestart, ReportsTheFailureWhenNoRestartIsLeft) {
  LauncherProcess launcher(
      shell_ranks(2, "test $RANK = 1 && kill -9 $$; exec sleep 1000", {"--max-restarts", "2"}));
  EXPECT_EQ(launcher.finish(), 137);
  EXPECT_THAT(last_line(launcher), AllOf(HasSubstr("rank 1 failed first: it was killed by SIGKILL"),
                                         HasSubstr("after 2 restarts")));
  launcher.wait_for_no_family();
}

TEST(LauncherRestart, LeavesNothingOfThePreviousAttempt) {
  const TempFolder folder;
  const auto pid = folder.file("pid");
  LauncherProcess launcher(shell_ranks(
      1,
      fmt::format("test $TORCHELASTIC_RESTART_COUNT = 1 && {{ kill -0 $(cat {0}) && exit 4; exit 0; }};"
                  "setsid sh -c 'trap \"\" TERM; echo $$ > {0}.part; mv {0}.part {0}; exec sleep 1000' &"
                  "while ! test -e {0}; do sleep 0.01; done; exit 3",
                  pid),
      {"--max-restarts", "1", "--grace-period", "0.2"}));
  EXPECT_EQ(launcher.finish(), 0) << launcher.err();
  launcher.wait_for_no_family();
}

TEST(LauncherRestart, EndsOnASignalDuringARestart) {
  // Rank 0 takes part in the restart until the launcher has had its signal.
  const TempFolder folder;
  const auto script = fmt::format(
      "test $RANK = 1 && {{ until test -e {0}; do sleep 0.01; done; exit 3; }};"
      "trap 'echo asked; until test -e {1}; do sleep 0.01; done; exit 0' TERM; sleep 1000 & : > {0};"
      "while :; do wait; done",
      folder.file("up"), folder.file("told"));
  LauncherProcess launcher(shell_ranks(2, script, {"--max-restarts", "100", "--grace-period", "1000"}),
                           {.output = Output::one_pipe});
  launcher.wait_for("asked");
  launcher.send(SIGTERM);
  launcher.wait_for("SIGTERM: the ranks will not be restarted");
  std::ofstream(folder.file("told")) << "";
  EXPECT_EQ(launcher.finish(), 3) << launcher.out();
  launcher.wait_for_no_family();
}

TEST(LauncherNodes, RunOneJob) {
  const auto port = free_port();
  const std::string script =
      "echo $RANK/$WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE $LOCAL_RANK $MASTER_ADDR $MASTER_PORT";
  auto second = node(numbered(1, port, {"--nproc-per-node", "2"}), script);
  auto first = node(numbered(0, port, {"--nproc-per-node", "1"}), script);
  EXPECT_EQ(first.finish(), 0) << first.err();
  EXPECT_EQ(second.finish(), 0) << second.err();
  EXPECT_THAT(first.out(), HasSubstr(" rank 0] 0/3 0/2 0 127.0.0.1 "));
  EXPECT_THAT(second.out(),
              AllOf(HasSubstr(" rank 1] 1/3 1/2 0 127.0.0.1 "), HasSubstr(" rank 2] 2/3 1/2 1 ")));
}

// Its kernel keeps the connections of a frozen launcher.
TEST(LauncherNodes, ANodeGivesUpAFrozenCoordinator) {
  const auto port = free_port();
  const Words conf{"--rdzv-conf", "keep_alive_interval=0.3,keep_alive_max_attempt=1"};
  const std::string script = "echo up $RANK; test $RANK = 1 || exec sleep 1000";
  auto first = node(numbered(0, port, conf), script);
  auto second = node(numbered(1, port, conf), script);
  first.wait_for("up 0");
  second.wait_for("up 1");
  first.send(SIGSTOP);
  EXPECT_EQ(second.finish(), 1);
  EXPECT_THAT(second.err(), HasSubstr("which coordinates the nodes, did not answer for 1.2 s"));
  first.send(SIGCONT);
  first.send(SIGTERM);
  EXPECT_EQ(first.finish(), 128 + SIGTERM) << first.err();
}

TEST(LauncherNodes, ANodeWaitsForAnotherAsLongAsTheCoordinatorWorks) {
  const auto port = free_port();
  const Words conf{"--rdzv-conf", "keep_alive_interval=1.5,keep_alive_max_attempt=1"};
  const std::string script = "test $RANK = 1 || exec sleep 7";  // four times 1.5 s, and more
  auto first = node(numbered(0, port, conf), script);
  auto second = node(numbered(1, port, conf), script);
  EXPECT_EQ(second.finish(), 0) << second.err();
  EXPECT_EQ(first.finish(), 0) << first.err();
}

TEST(LauncherNodes, AllNameTheRankThatFailedAndExitAlike) {
  const auto port = free_port();
  const std::string script = "test $RANK = 1 && { echo bad luck >&2; exit 7; }; exec sleep 1000";
  auto first = node(numbered(0, port), script);
  auto second = node(numbered(1, port), script);
  for (auto* launcher : {&first, &second}) {
    EXPECT_EQ(launcher->finish(), 7);
    EXPECT_THAT(launcher->err(), HasSubstr("bad luck"));
    EXPECT_THAT(last_line(*launcher), HasSubstr("rank 1 failed first: it exited with code 7"));
    launcher->wait_for_no_family();
  }
}

// Its rank says itself that another one was gone before.
TEST(LauncherNodes, NameTheCauseAndNotItsConsequence) {
  const auto port = free_port();
  const TempFolder folder;
  const auto said = folder.file("said");
  const std::string script = fmt::format(
      "test $RANK = 0 && {{ echo failed because another rank is gone >&2; echo $$ > {0}.part; mv {0}.part {0}; exit 1; }};"
      "while ! test -e {0}; do sleep 0.01; done; read pid < {0};"
      "while kill -0 $pid; do :; done 2> /dev/null; echo the cause >&2; exit 7",
      said);
  auto first = node(numbered(0, port), script);
  auto second = node(numbered(1, port), script);
  for (auto* launcher : {&first, &second}) {
    EXPECT_EQ(launcher->finish(), 7) << launcher->err();
    EXPECT_THAT(last_line(*launcher), HasSubstr("rank 1 failed first: it exited with code 7"));
  }
  EXPECT_THAT(first.err(), HasSubstr("after that, rank 0 exited with code 1"));
}

TEST(LauncherNodes, GiveUpOnAServerThatIsNotALauncher) {
  // A listener that accepts connections, sends nothing, and later closes them.
  LauncherProcess server(
      {"run", "--nproc-per-node", "2", "--master-port", free_port(), "--", "/bin/sh", "-c",
       fmt::format("test $RANK = 0 && exec {} meet; echo port $MASTER_PORT; exec sleep 1000",
                   LAUNCHER_RANK_PROGRAM)});
  server.wait_for("port ");
  const auto at = server.out().find("port ") + 5;
  const auto port = server.out().substr(at, server.out().find('\n', at) - at);
  auto second = node(numbered(1, port), "true");
  EXPECT_EQ(second.finish(), 1);
}

TEST(LauncherNodes, RestartTogether) {
  const auto port = free_port();
  const std::string script =
      "echo up $RANK $TORCHELASTIC_RESTART_COUNT; test $TORCHELASTIC_RESTART_COUNT = 2 && exit 0;"
      "test $RANK = $TORCHELASTIC_RESTART_COUNT && kill -9 $$; exec sleep 1000";
  // A rank may be stopped before it prints, because the failure of the other node arrives quickly.
  auto first = node(numbered(0, port, {"--max-restarts", "2"}), script);
  auto second = node(numbered(1, port, {"--max-restarts", "2"}), script);
  EXPECT_EQ(first.finish(), 0) << first.err();
  EXPECT_EQ(second.finish(), 0) << second.err();
  EXPECT_THAT(first.out(), AllOf(HasSubstr("up 0 0"), HasSubstr("up 0 2")));
  EXPECT_THAT(second.out(), AllOf(HasSubstr("up 1 1"), HasSubstr("up 1 2")));
}

TEST(LauncherNodes, WithoutNodeRanksAgreeOnThem) {
  const auto port = free_port();
  std::vector<std::unique_ptr<LauncherProcess>> nodes;
  for (int i = 0; i < 3; ++i) {
    Words words{"run"};
    for (const auto& word : as_they_come("3", port)) words.push_back(word);
    words.insert(words.end(), {"--", "/bin/sh", "-c", "echo rank $RANK of $WORLD_SIZE"});
    nodes.push_back(std::make_unique<LauncherProcess>(words));
  }
  std::string all;
  for (auto& launcher : nodes) {
    EXPECT_EQ(launcher->finish(), 0) << launcher->err();
    all += launcher->out();
  }
  for (int rank = 0; rank < 3; ++rank) EXPECT_THAT(all, HasSubstr(fmt::format("rank {} of 3", rank)));
}

TEST(LauncherNodes, ContinueWithOneNodeFewerWhenANodeIsKilled) {
  const auto port = free_port();
  const std::string script = "echo up $RANK of $WORLD_SIZE; test $WORLD_SIZE = 1 && exit 0; exec sleep 1000";
  auto first = node(as_they_come("1:2", port, {"--max-restarts", "1", "--rdzv-conf", "is_host=1"}), script);
  auto second = node(as_they_come("1:2", port, {"--max-restarts", "1", "--rdzv-conf", "is_host=0"}), script);
  first.wait_for("of 2");
  second.wait_for("of 2");
  second.send(SIGKILL);
  second.finish();
  second.wait_for_no_family();
  EXPECT_EQ(first.finish(), 0) << first.err();
  EXPECT_THAT(first.out(), HasSubstr("up 0 of 1"));
  EXPECT_THAT(first.err(), HasSubstr("was lost"));
}

TEST(LauncherNodes, StopWhenTheCoordinatorIsKilled) {
  const auto port = free_port();
  auto first = node(numbered(0, port), "echo up; exec sleep 1000");
  auto second = node(numbered(1, port), "echo up; exec sleep 1000");
  first.wait_for("up");
  second.wait_for("up");
  first.send(SIGKILL);
  EXPECT_EQ(second.finish(), 1);
  EXPECT_THAT(last_line(second), HasSubstr("is lost"));
  first.finish();
  first.wait_for_no_family();
  second.wait_for_no_family();
}

TEST(LauncherNodes, StopWhenOneIsStopped) {
  const auto port = free_port();
  auto first = node(numbered(0, port), "echo up; exec sleep 1000");
  auto second = node(numbered(1, port), "echo up; exec sleep 1000");
  first.wait_for("up");
  second.wait_for("up");
  second.send(SIGTERM);
  EXPECT_EQ(second.finish(), 143);
  EXPECT_EQ(first.finish(), 1);
  EXPECT_THAT(last_line(first), AllOf(HasSubstr("node 1"), HasSubstr("its launcher received SIGTERM")));
}

TEST(LauncherNodes, EndWithoutARestartWhenTheCoordinatorIsStopped) {
  const auto port = free_port();
  auto first = node(numbered(0, port, {"--max-restarts", "3"}), "echo up; exec sleep 1000");
  auto second = node(numbered(1, port, {"--max-restarts", "3"}), "echo up; exec sleep 1000");
  first.wait_for("up");
  second.wait_for("up");
  first.send(SIGTERM);
  EXPECT_EQ(first.finish(), 143);
  EXPECT_EQ(second.finish(), 1);
  EXPECT_THAT(last_line(second), AllOf(HasSubstr("which coordinates the nodes"), HasSubstr("SIGTERM")));
  EXPECT_THAT(second.err(), Not(HasSubstr("restart")));
}

}  // namespace
}  // namespace lockstep::testing::launcher_restart_test
