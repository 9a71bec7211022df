// SPDX-License-Identifier: BSD-3-Clause
#include "launch/messages.h"

#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/version.h>

#include "launch/account.h"
#include "launch/options.h"

namespace lockstep::launch {
namespace {

TEST(Messages, TravelBothWays) {
  const auto hello = decode_hello(encode(Hello{.node = {.shared = {.run_id = "r \"1\"", .max_nodes = 3},
                                                        .node_rank = 2,
                                                        .ranks = 4,
                                                        .host = "h",
                                                        .grace_period_ms = 70}}));
  EXPECT_EQ(hello.node.shared.run_id, "r \"1\"");
  EXPECT_EQ(hello.node.shared.max_nodes, 3);
  EXPECT_EQ(hello.node.shared.lockstep, lockstep::version());
  EXPECT_EQ(hello.node.node_rank, 2);
  EXPECT_EQ(hello.node.ranks, 4);
  EXPECT_EQ(hello.node.grace_period_ms, 70);
  EXPECT_EQ(decode_hello(encode(Hello{})).node.node_rank, std::nullopt);

  const Hello endless{.node = {.grace_period_ms = std::int64_t{1} << 62}};
  EXPECT_THROW(decode_hello(encode(endless)), LaunchError);

  const auto start =
      std::get<Start>(decode_to_node(encode(ToNode(Start{{.attempt = 3, .restarts = 2, .world_size = 9}}))));
  EXPECT_EQ(start.assignment.attempt, 3);
  EXPECT_EQ(start.assignment.restarts, 2);
  EXPECT_EQ(start.assignment.world_size, 9);

  const Failed failed{
      .attempt = 1,
      .report = {.first = {.rank = 7, .signal = SIGABRT, .core_dumped = true, .cpu_limit = true},
                 .host = "h",
                 .stderr_tail = {"a\nb", "\xff"},
                 .ends_run = true,
                 .later = {{.rank = 8, .code = 3}}}};
  const auto back = std::get<Failed>(decode_from_node(encode(FromNode(failed))));
  EXPECT_EQ(back.report.first.signal, SIGABRT);
  EXPECT_TRUE(back.report.first.core_dumped);
  EXPECT_TRUE(back.report.first.cpu_limit);
  EXPECT_EQ(back.report.stderr_tail.front(), "a\nb");
  EXPECT_TRUE(back.report.ends_run);
  EXPECT_EQ(back.report.later.front().code, 3);
  EXPECT_EQ(encode(FromNode(failed)).find('\n'), std::string::npos) << "one message is one line";

  EXPECT_EQ(start.assignment.store_port, 0);
  const auto replaced = std::get<Replaced>(decode_from_node(encode(FromNode(Replaced{1, failed.report}))));
  EXPECT_EQ(replaced.attempt, 1);
  EXPECT_EQ(replaced.report.first.rank, 7);
  const Reserved reserved{.store_port = 9, .store_token = "t"};
  const auto read = std::get<Reserved>(decode_from_node(encode(FromNode(reserved))));
  EXPECT_EQ(read.store_port, 9);
  EXPECT_EQ(read.store_token, "t");
  EXPECT_EQ(std::get<Restarts>(decode_to_node(encode(ToNode(Restarts{1, 2})))).restarts, 2);

  const auto lost =
      std::get<Lost>(decode_to_node(encode(ToNode(Lost{1, 2, 3, "notice", FailureReport{.reason = "r"}}))));
  EXPECT_EQ(lost.node_rank, 2);
  EXPECT_EQ(lost.epoch, 3);
  EXPECT_EQ(lost.report.reason, "r");
  const AdoptedNode node{.node_rank = 2, .role = "a:b", .memory = "m:n", .threads = {1, 3}};
  const auto adopt = std::get<Adopt>(decode_to_node(encode(ToNode(Adopt{node}))));
  EXPECT_EQ(adopt.node.memory, "m:n");
  const auto parsed = parse_adopted(adopt_text(adopt.node));
  EXPECT_EQ(parsed.node_rank, 2);
  EXPECT_EQ(parsed.role, "a:b");
  EXPECT_EQ(parsed.threads, (std::vector{1, 3}));

  EXPECT_FALSE(std::get<End>(decode_to_node(encode(ToNode(End{})))).failure);
  EXPECT_EQ(std::get<End>(decode_to_node(encode(ToNode(End{FailureReport{.reason = "r"}})))).failure->reason,
            "r");
}

TEST(Messages, OfOtherVersionsSayWhichOne) {
  const auto earlier = decode_hello(
      R"({"kind":"hello","protocol":5,"run_id":"none","node_rank":1,"ranks":1,"role":"default","host":"b",)"
      R"("is_host":false,"grace_period_ms":5000,"challenge":"c","proof":""})");
  EXPECT_EQ(earlier.node.shared.messages, 5);
  EXPECT_EQ(earlier.node.shared.lockstep, "");
  EXPECT_EQ(earlier.node.host, "b");
  EXPECT_EQ(earlier.challenge, "c");
  const auto later = decode_hello(
      R"({"kind":"hello","protocol":70,"lockstep":"9.0","host":"b","challenge":"c","proof":"p","new":[]})");
  EXPECT_EQ(later.node.shared.messages, 70);
  EXPECT_EQ(later.node.shared.lockstep, "9.0");
}

TEST(Messages, OfUnknownProgramsAreRejected) {
  for (const char* line : {"", "GET / HTTP/1.1", "{}", "[]", "{\"kind\": 3}", "{\"kind\": \"bogus\"}",
                           "{\"kind\": \"failed\", \"attempt\": \"x\"}", "\xff\xfe",
                           "{\"kind\":\"hello\",\"protocol\":1,\"run_id\":\"\",\"node_rank\":-1,\"ranks\":1,"
                           "\"role\":\"\",\"host\":\"\",\"is_host\":false}"}) {
    EXPECT_THROW(decode_from_node(line), LaunchError) << line;
    EXPECT_THROW(decode_to_node(line), LaunchError) << line;
    EXPECT_THROW(decode_hello(line), LaunchError) << line;
  }
}

TEST(Account, IsReadAsItWasWritten) {
  const auto started =
      decode_account_entry(encode(AccountEntry{.restarts = 2, .started = {{3, 70}, {4, 71}}}));
  EXPECT_EQ(started.restarts, 2);
  EXPECT_EQ(started.started, (std::map<int, int>{{3, 70}, {4, 71}}));
  const auto replaced = decode_account_entry(
      encode(AccountEntry{.started = {{3, 72}}, .replacement = "rank 3 exited with code 1"}));
  EXPECT_EQ(replaced.replacement, "rank 3 exited with code 1");
  const auto ended = decode_account_entry(
      encode(AccountEntry{.exit = RankExit{.rank = 3, .pid = 70, .signal = SIGKILL}, .was_stopped = true}));
  EXPECT_EQ(ended.exit->signal, SIGKILL);
  EXPECT_TRUE(ended.was_stopped && !ended.failure);
  const auto failed = decode_account_entry(
      encode(AccountEntry{.signal = SIGINT, .failure = FailureReport{.reason = "no \"network\" \xff"}}));
  EXPECT_EQ(failed.signal, SIGINT);
  EXPECT_THAT(failed.failure->reason, ::testing::StartsWith("no \"network\" "));
  EXPECT_THROW(decode_account_entry("{\"time\":1}"), LaunchError);
}

TEST(Streams, AreSelectedAsWithTorchrun) {
  const auto both = parse_streams("3", "--tee");
  EXPECT_TRUE(both.has_out(5) && both.has_err(5));
  const auto some = parse_streams("0:1,2:2", "--tee");
  EXPECT_TRUE(some.has_out(0) && !some.has_err(0));
  EXPECT_TRUE(!some.has_out(1) && !some.has_err(1));
  EXPECT_TRUE(some.has_err(2));
  EXPECT_FALSE(parse_streams("0", "--tee").any());
  for (const char* wrong : {"", "4", "x", "0:4", "a:1", "0:1,", "-1:1", "0-1"}) {
    EXPECT_THROW(parse_streams(wrong, "--tee"), ArgumentError) << wrong;
  }
}

}  // namespace
}  // namespace lockstep::launch
