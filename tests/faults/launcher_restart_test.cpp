// SPDX-License-Identifier: BSD-3-Clause
// Ranks that are started again, on one node and on several.
#include <array>
#include <memory>
#include <random>
#include <signal.h>
#include <stdexcept>
#include <sys/socket.h>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/sockets.h"
#include "support/launcher_process.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using Words = std::vector<std::string>;

std::string free_port() { return std::to_string(ReservedPort().port()); }

std::string last_line(const LauncherProcess& launcher) {
  const auto lines = lines_of(launcher.err());
  return lines.empty() ? "" : lines.back();
}

// A launcher of one of several nodes on this host.
LauncherProcess node(const Words& options, const std::string& script, const std::string& secret = "") {
  Words arguments{"run"};
  arguments.insert(arguments.end(), options.begin(), options.end());
  for (const char* word : {"--", "/bin/sh", "-c"}) arguments.emplace_back(word);
  arguments.push_back(script);
  return LauncherProcess(arguments, {.env = {{"LOCKSTEP_SECRET", secret}}});
}

SocketAddress loopback(int port) { return resolve_now("127.0.0.1", port).addresses.front(); }

void wait_for_listener(const std::string& port) {
  const Deadline deadline(std::chrono::seconds(60));
  while (!deadline.expired()) {
    if (connect_to(loopback(std::stoi(port)), deadline)) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  throw std::runtime_error("nobody listens at port " + port);
}

Words numbered(int node_rank, const std::string& port, Words more = {}) {
  more.insert(more.begin(),
              {"--nnodes", "2", "--node-rank", std::to_string(node_rank), "--master-port", port});
  return more;
}

Words as_they_come(const std::string& nnodes, const std::string& port, Words more = {}) {
  more.insert(more.begin(), {"--nnodes", nnodes, "--rdzv-backend", "c10d", "--rdzv-endpoint",
                             "127.0.0.1:" + port, "--rdzv-id", "test"});
  return more;
}

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
  LauncherProcess launcher(
      shell_ranks(2,
                  "trap 'echo asked; trap \"\" TERM' TERM; echo up $RANK; test $RANK = 1 && exit 3;"
                  "while :; do sleep 0.01; done",
                  {"--max-restarts", "100", "--grace-period", "0.5"}));
  launcher.wait_for("asked");
  launcher.send(SIGTERM);
  EXPECT_EQ(launcher.finish(), 3);
  EXPECT_THAT(launcher.err(), HasSubstr("SIGTERM: the ranks will not be restarted"));
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
      "test $RANK = 0 && {{ echo failed because another rank is gone >&2; echo > {0}; exit 1; }};"
      "while ! test -e {0}; do sleep 0.01; done; sleep 0.05; echo the cause >&2; exit 7",
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

TEST(LauncherNodes, AreRejectedWhenTheyDoNotMatch) {
  const auto port = free_port();
  auto first = node(numbered(0, port), "echo up; exec sleep 1000");
  wait_for_listener(port);
  auto twin = node(numbered(0, port), "true");
  EXPECT_EQ(twin.finish(), 1);
  EXPECT_THAT(twin.err(), HasSubstr("the coordinator cannot listen on TCP port " + port));
  auto stranger = node(numbered(1, port, {"--rdzv-id", "other"}), "true");
  EXPECT_EQ(stranger.finish(), 1);
  EXPECT_THAT(stranger.err(), HasSubstr("this is the run \"none\", not \"other\""));
}

TEST(LauncherNodes, ProveThatTheyKnowTheSecretOfTheRun) {
  const std::string secret = "0123456789abcdef";
  const auto port = free_port();
  auto first = node(numbered(0, port), "echo up; exit 0", secret);
  wait_for_listener(port);
  for (const auto* const other : {"", "0123456789abcdeF"}) {
    auto stranger = node(numbered(1, port), "true", other);
    EXPECT_EQ(stranger.finish(), 1);
    EXPECT_THAT(stranger.err(), HasSubstr("the node does not know the secret of this run"));
  }
  auto second = node(numbered(1, port), "echo up; exit 0", secret);
  EXPECT_EQ(second.finish(), 0) << second.err();
  EXPECT_EQ(first.finish(), 0) << first.err();
  EXPECT_THAT(first.err(), Not(HasSubstr("any program")));

  const auto open = free_port();
  auto without = node(numbered(0, open), "true");
  wait_for_listener(open);
  auto with = node(numbered(1, open), "true", secret);
  EXPECT_EQ(with.finish(), 1);
  EXPECT_THAT(with.err(), HasSubstr("this run has no secret, but the node has"));
}

TEST(LauncherNodes, DoNotBelieveAServerThatDoesNotKnowTheSecret) {
  const auto listener = bound_socket(0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  auto second =
      node(numbered(1, std::to_string(bound_port(listener.get()))), "echo started", "0123456789abcdef");
  const UniqueFd connection(::accept(listener.get(), nullptr, nullptr));
  const std::string lines = R"({"kind":"challenge","challenge":"1"})"
                            "\n"
                            R"({"kind":"welcome","proof":"00","silence_limit_ms":15000})"
                            "\n";
  ASSERT_EQ(::send(connection.get(), lines.data(), lines.size(), 0), static_cast<ssize_t>(lines.size()));
  EXPECT_EQ(second.finish(), 1);
  EXPECT_THAT(second.err(), HasSubstr("does not know the secret of this run"));
  EXPECT_EQ(second.out(), "");
}

TEST(LauncherNodes, TryAgainWhenTheyAreDroppedBeforeTheyJoin) {
  const auto listener = bound_socket(0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  auto second = node(numbered(1, std::to_string(bound_port(listener.get()))), "true");
  const std::string challenge = "{\"kind\":\"challenge\",\"challenge\":\"1\"}\n";
  for (int times = 0; times < 2; ++times) {
    ASSERT_TRUE(wait_for(listener.get(), POLLIN, Deadline(std::chrono::seconds(60))));
    const UniqueFd connection(::accept(listener.get(), nullptr, nullptr));
    ASSERT_EQ(::send(connection.get(), challenge.data(), challenge.size(), 0),
              static_cast<ssize_t>(challenge.size()));
    ASSERT_TRUE(wait_for(connection.get(), POLLIN, Deadline(std::chrono::seconds(60)))) << "for its Hello";
  }
}

// Oversized, malformed, cut short and silent.
TEST(LauncherNodes, AreNotDisturbedByStrangers) {
  const auto port = free_port();
  auto first = node(numbered(0, port), "true");
  wait_for_listener(port);
  std::mt19937 random(7);
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 200; ++i) {
    strangers.push_back(connect_to(loopback(std::stoi(port)), Deadline(std::chrono::seconds(60))));
    std::string bytes(std::array<std::size_t, 4>{0, 10, 1000, 100'000}[static_cast<std::size_t>(i % 4)], 'x');
    for (auto& byte : bytes) byte = static_cast<char>(random());
    if (i % 3 == 0) bytes = R"({"kind":"hello","protocol":5,"ranks":)" + bytes;
    if (i % 2 == 0) bytes += '\n';
    // It may close the connection at once.
    (void)::send(strangers.back().get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  auto second = node(numbered(1, port), "true");
  EXPECT_EQ(second.finish(), 0) << second.err();
  EXPECT_EQ(first.finish(), 0) << first.err();
}

// Reads until the other side closes the connection.
bool ends(const UniqueFd& socket, const Deadline& deadline) {
  std::array<char, 4096> bytes;
  while (wait_for(socket.get(), POLLIN, deadline)) {
    const auto count = ::recv(socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count == 0 || (count < 0 && errno != EAGAIN)) return true;
  }
  return false;
}

// Not only when the time for a first message is over: the silent connection is older.
TEST(LauncherNodes, DropAStrangerThatSendsTooMuch) {
  const auto port = free_port();
  auto first = node(numbered(0, port), "true");
  wait_for_listener(port);
  const Deadline deadline(std::chrono::seconds(60));
  const auto silent = connect_to(loopback(std::stoi(port)), deadline);
  const auto loud = connect_to(loopback(std::stoi(port)), deadline);
  const std::string line(5000, 'x');
  ASSERT_EQ(::send(loud.get(), line.data(), line.size(), MSG_NOSIGNAL), static_cast<ssize_t>(line.size()));
  EXPECT_TRUE(ends(loud, deadline));
  EXPECT_FALSE(ends(silent, Deadline(std::chrono::milliseconds(0))));
}

// The coordinator's node, started under `limit`: an argument of ulimit.
LauncherProcess node_with_few_files(const std::string& limit, const std::string& port) {
  return LauncherProcess(
      {"-c", fmt::format("ulimit {} 64; exec {} run --nnodes 2 --node-rank 0 --master-port {} -- "
                         "/bin/sh -c 'echo limit $(ulimit -Sn)'",
                         limit, LOCKSTEP_PROGRAM, port)},
      {.program = "/bin/sh"});
}

std::vector<UniqueFd> silent_strangers(int count, const std::string& port) {
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < count; ++i) {
    strangers.push_back(connect_to(loopback(std::stoi(port)), Deadline(std::chrono::seconds(60))));
  }
  return strangers;
}

TEST(LauncherNodes, DropTheOldestStrangersWhenDescriptorsRunOut) {
  const auto port = free_port();
  auto first = node_with_few_files("-n", port);
  wait_for_listener(port);
  const auto strangers = silent_strangers(100, port);
  EXPECT_TRUE(ends(strangers.front(), Deadline(std::chrono::seconds(60))));
  auto second = node(numbered(1, port), "true");
  EXPECT_EQ(second.finish(), 0) << second.err();
  EXPECT_EQ(first.finish(), 0) << first.err();
  std::size_t told = 0;
  for (const auto& line : lines_of(first.err()))
    told += line.find("cannot accept") != std::string::npos ? 1 : 0;
  EXPECT_EQ(told, 1U) << first.err();
}

TEST(LauncherNodes, RaiseTheLimitOfDescriptorsButNotThatOfRanks) {
  const auto port = free_port();
  auto first = node_with_few_files("-Sn", port);
  wait_for_listener(port);
  const auto strangers = silent_strangers(100, port);
  auto second = node(numbered(1, port), "true");
  EXPECT_EQ(second.finish(), 0) << second.err();
  EXPECT_EQ(first.finish(), 0) << first.err();
  EXPECT_THAT(first.err(), Not(HasSubstr("cannot accept")));
  EXPECT_THAT(first.out(), HasSubstr("limit 64"));
}

TEST(LauncherNodes, NameMissingNodes) {
  auto first = node(numbered(0, free_port(), {"--rdzv-conf", "join_timeout=0.3"}), "true");
  EXPECT_EQ(first.finish(), 1);
  EXPECT_THAT(last_line(first), HasSubstr("only 1 of 2 nodes joined within 0.3 s: node-rank 1 is missing"));

  auto second = node(numbered(1, free_port(), {"--rdzv-conf", "join_timeout=0.3"}), "true");
  EXPECT_EQ(second.finish(), 1);
  EXPECT_THAT(last_line(second), HasSubstr("no launcher answers at 127.0.0.1:"));
}

}  // namespace
}  // namespace lockstep::testing
