// SPDX-License-Identifier: BSD-3-Clause
// Which launchers may join a run of several nodes, and what happens to the others.
#include <array>
#include <functional>
#include <memory>
#include <random>
#include <signal.h>
#include <sys/socket.h>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/version.h>

#include "base/host.h"
#include "base/sockets.h"
#include "base/version.h"
#include "faults/launcher_nodes.h"
#include "launch/messages.h"
#include "support/launcher_process.h"

namespace lockstep::testing::launcher_joining_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(LauncherNodes, AreRejectedWhenTheyDoNotMatch) {
  const auto port = free_port();
  auto first = node(numbered(0, port), "echo up; exec sleep 1000");
  wait_for_listener(port);
  auto twin = node(numbered(0, port), "true");
  EXPECT_EQ(twin.finish(), 1);
  EXPECT_THAT(twin.err(), HasSubstr("the coordinator cannot listen on TCP port " + port));
}

// The refusal of a node by the first node on `port`, from what the node printed; both print the same.
std::string refusal(LauncherProcess& refused) {
  EXPECT_EQ(refused.finish(), 1);
  EXPECT_EQ(refused.out(), "");
  const std::string begin = "refused this node: ";
  const auto at = refused.err().find(begin);
  if (at == std::string::npos) return "none: " + refused.err();
  return lines_of(refused.err().substr(at + begin.size())).front();
}

TEST(LauncherNodes, AreRefusedOnBothSidesIfOptionsOfTheRunDiffer) {
  const auto host = host_name();
  const auto text = [&](const std::string& of_node, const std::string& of_first) {
    return fmt::format(
        "the node on {0} has {1}, but the node on {0}, which coordinates the run, has {2}; start the launchers "
        "of all nodes of a run with the same values",
        host, of_node, of_first);
  };
  const auto port = free_port();
  auto first = node(numbered(0, port), "echo up");
  wait_for_listener(port);
  auto larger = node({"--nnodes", "3", "--node-rank", "1", "--master-port", port}, "echo started");
  const auto nodes = text("--nnodes 3", "--nnodes 2");
  EXPECT_EQ(refusal(larger), nodes);
  auto other = node(numbered(1, port, {"--rdzv-id", "other", "--max-restarts", "2"}), "echo started");
  const auto both = text("--rdzv-id other and --max-restarts 2", "--rdzv-id none and --max-restarts 0");
  EXPECT_EQ(refusal(other), both);
  auto second = node(numbered(1, port), "echo up");
  EXPECT_EQ(second.finish(), 0) << second.err();
  EXPECT_EQ(first.finish(), 0) << "it waited for a node that fits\n" << first.err();
  EXPECT_THAT(first.err(),
              AllOf(HasSubstr("a node was refused: " + nodes), HasSubstr("a node was refused: " + both)));

  const auto elastic = free_port();
  auto one = node(as_they_come("1:2", elastic, {"--rdzv-conf", "last_call_timeout=600"}), "true");
  wait_for_listener(elastic);
  auto fixed = node(as_they_come("2", elastic), "echo started");
  EXPECT_EQ(refusal(fixed), text("--nnodes 2", "--nnodes 1:2"));
}

// As a launcher of another version would join.
std::string join_by_hand(const std::string& port, const std::function<void(launch::SharedOptions&)>& change) {
  const Deadline deadline(std::chrono::seconds(60));
  launch::LineConnection connection(connect_to(loopback(std::stoi(port)), deadline));
  launch::Hello hello{.node = {.shared = {.min_nodes = 2, .max_nodes = 2}, .node_rank = 1, .host = "b"}};
  change(hello.node.shared);
  while (!deadline.expired() && connection.broken().empty()) {
    connection.advance();
    const auto line = connection.take_line();
    if (!line) {
      wait_for(connection.fd(), POLLIN, deadline);
      continue;
    }
    const auto message = launch::decode_to_node(*line);
    if (const auto* refused = std::get_if<launch::Refused>(&message)) return refused->reason;
    if (const auto* challenge = std::get_if<launch::Challenge>(&message)) {
      hello.challenge = challenge->challenge;
      connection.send(encode(hello));
    }
  }
  return "none: " + connection.broken();
}

TEST(LauncherNodes, OfAnotherVersionAreRefused) {
  const auto port = free_port();
  auto first = node(numbered(0, port), "true");
  wait_for_listener(port);
  const auto own = fmt::format(", but the node on {}, which coordinates the run, has Lockstep {}",
                               host_name(), lockstep::version());
  const std::string remedy = "; install the same version on all nodes";
  std::vector<std::string> refusals;
  refusals.push_back(join_by_hand(port, [](auto& shared) { shared.lockstep = "99.1"; }));
  EXPECT_EQ(refusals.back(), "the node on b has Lockstep 99.1" + own + remedy);
  refusals.push_back(join_by_hand(port, [](auto& shared) {
    shared.lockstep = "99.2";
    shared.messages = 70;
  }));
  EXPECT_EQ(refusals.back(), "the node on b has Lockstep 99.2" + own + remedy);
  refusals.push_back(join_by_hand(port, [](auto& shared) { shared.messages = 70; }));
  EXPECT_THAT(refusals.back(),
              AllOf(HasSubstr(lockstep::version() + " with format 70 of messages, but"), HasSubstr(remedy)));
  first.send(SIGTERM);
  first.finish();
  for (const auto& refused : refusals) EXPECT_THAT(first.err(), HasSubstr("a node was refused: " + refused));
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
    if (i % 3 == 0)
      bytes = fmt::format(R"({{"kind":"hello","protocol":{},"ranks":)", formats::kLauncherMessages.number) +
              bytes;
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
}  // namespace lockstep::testing::launcher_joining_test
