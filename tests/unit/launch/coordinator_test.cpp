// SPDX-License-Identifier: BSD-3-Clause
#include "launch/coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/launch/fake_run.h"

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const Failed kFailure{.attempt = 0, .report = {.first = {.rank = 3, .code = 1}, .host = "b"}};

TEST(Coordinator, StartsWhenAllNodesHaveArrivedAndThePortIsReserved) {
  FakeRun run({.shared = {.min_nodes = 2, .max_nodes = 2}});
  run.join(0, {.ranks = 2, .host = "a"});
  EXPECT_THAT(run.told<Reserve>(), IsEmpty());
  run.join(1, {.ranks = 3, .host = "b"});
  EXPECT_THAT(run.told<Reserve>(), ElementsAre(0));
  EXPECT_THAT(run.told<Start>(), IsEmpty());
  run.handle(0, Reserved{.address = "10.0.0.1", .port = 77});
  EXPECT_THAT(run.told<Start>(), ElementsAre(0, 1));
  const NodeAssignment second = run.assignment_of(1);
  EXPECT_EQ(second.first_rank, 2);
  EXPECT_EQ(second.world_size, 5);
  EXPECT_EQ(second.node_rank, 1);
  EXPECT_EQ(second.nodes, 2);
  EXPECT_EQ(second.master_addr, "10.0.0.1");
  EXPECT_EQ(second.master_port, 77);
  EXPECT_EQ(run.poll_timeout(), std::nullopt) << "nothing to wake up for";
}

TEST(Coordinator, CountsTheReplacementsOfAllNodes) {
  FakeRun run({.shared = {.min_nodes = 2, .max_nodes = 2, .max_restarts = 2}});
  run.join(0, {.ranks = 2, .host = "a"});
  run.join(1, {.ranks = 3, .host = "b"});
  run.handle(0, Reserved{.store_port = 78});
  EXPECT_EQ(run.assignment_of(1).store_port, 78);
  run.handle(1, Replaced{.attempt = 0, .report = kFailure.report});
  EXPECT_THAT(run.told<Restarts>(), ElementsAre(0, 1));
  EXPECT_EQ(run.last<Restarts>().restarts, 1);
  run.handle(0, Replaced{.attempt = 0, .report = kFailure.report});
  EXPECT_EQ(run.last<Restarts>().restarts, 2);
  EXPECT_THAT(run.told<Stop>(), IsEmpty());
  // It has not heard of the others' in time.
  run.handle(1, Replaced{.attempt = 0, .report = kFailure.report});
  EXPECT_THAT(run.told<Stop>(), ElementsAre(0, 1));
  run.handle(0, Stopped{0});
  run.handle(1, Stopped{0});
  EXPECT_EQ(run.last<End>().failure->first.rank, 3);
}

// As when all ranks are preempted and one is killed while it saves: its replacement would wait for ranks that are gone.
TEST(Coordinator, ReplacesNoRankAfterANodeHasFinished) {
  FakeRun run({.shared = {.min_nodes = 2, .max_nodes = 2, .max_restarts = 2}});
  run.join(0);
  run.join(1);
  run.handle(0, Reserved{.store_port = 78, .store_token = "a token"});
  EXPECT_EQ(run.assignment_of(1).store_token, "a token");
  run.handle(0, Finished{0});
  run.handle(1, Replaced{.attempt = 0, .report = kFailure.report});
  EXPECT_THAT(run.told<Restarts>(), IsEmpty());
  EXPECT_THAT(run.told<Stop>(), ElementsAre(0, 1));
  EXPECT_EQ(run.last<Stop>().notice, "rank 3 exited with code 1; restart 1 of 2");
  run.handle(0, Stopped{0});
  run.handle(1, Stopped{0});
  run.handle(0, Reserved{.store_port = 79, .store_token = "another"});
  EXPECT_EQ(run.assignment_of(1).store_port, 79);
  EXPECT_EQ(run.assignment_of(1).store_token, "another");
}

TEST(Coordinator, NumbersRolesSeparately) {
  FakeRun run({.shared = {.min_nodes = 3, .max_nodes = 3}});
  run.join(0, {.ranks = 2, .role = "trainer"});
  run.join(1, {.ranks = 1, .role = "reader"});
  run.join(2, {.ranks = 2, .role = "trainer"});
  run.handle(0, Reserved{});
  EXPECT_EQ(run.assignment_of(2).first_rank, 3);
  EXPECT_EQ(run.assignment_of(2).first_role_rank, 2);
  EXPECT_EQ(run.assignment_of(2).role_world_size, 4);
  EXPECT_EQ(run.assignment_of(1).first_role_rank, 0);
  EXPECT_EQ(run.assignment_of(1).role_world_size, 1);
}

TEST(Coordinator, RespectsGivenNodeRanks) {
  FakeRun run(
      {.shared = {.min_nodes = 2, .max_nodes = 2}, .host = "a", .numbered = true, .master_addr = "first"});
  run.join(0, {.node_rank = 1, .host = "one"});
  run.join(1, {.node_rank = 1, .host = "twin"});
  EXPECT_EQ(run.last<Refused>().reason,
            "the node on twin has --node-rank 1, but that of one has it already; give each node another");
  run.join(2, {.node_rank = 5});
  EXPECT_THAT(run.last<Refused>().reason, HasSubstr("--node-rank 5, but the run has 2 nodes"));
  run.join(3, {.host = "b"});
  EXPECT_EQ(
      run.last<Refused>().reason,
      "the node on b has no --node-rank, but the node on a, which coordinates the run, has a --node-rank; "
      "set it on all nodes or on none");
  run.join(4, {.node_rank = 0});
  EXPECT_THAT(run.told<Reserve>(), ElementsAre(4));
  run.handle(4, Reserved{.address = "10.0.0.1"});
  EXPECT_EQ(run.assignment_of(0).node_rank, 1);
  EXPECT_EQ(run.assignment_of(0).master_addr, "first");
}

TEST(Coordinator, SucceedsWhenAllNodesHaveFinished) {
  FakeRun run({.shared = {.min_nodes = 2, .max_nodes = 2}});
  run.join(0);
  run.join(1);
  run.handle(0, Reserved{});
  run.handle(1, Finished{0});
  EXPECT_FALSE(run.ended());
  run.handle(0, Finished{0});
  EXPECT_TRUE(run.ended());
  EXPECT_THAT(run.told<End>(), ElementsAre(0, 1));
  EXPECT_FALSE(run.last<End>().failure);
}

// A node tells of them only with its next failure.
TEST(Coordinator, CountsReplacementsOfSingleRanksAsRestarts) {
  for (const int replaced : {2, 3}) {
    FakeRun run({.shared = {.max_restarts = 3}});
    run.join(0);
    run.handle(0, Reserved{});
    auto failure = kFailure;
    failure.report.restarts = replaced;
    run.handle(0, failure);
    run.handle(0, Stopped{0});
    EXPECT_EQ(run.ended(), replaced == 3);
    if (run.ended()) continue;
    EXPECT_EQ(run.last<Stop>().notice, "rank 3 exited with code 1; restart 3 of 3");
    run.handle(0, Reserved{});
    EXPECT_EQ(run.assignment_of(0).restarts, 3);
  }
}

TEST(Coordinator, RestartsNothingAfterAFailureThatEndsTheRun) {
  FakeRun run({.shared = {.max_restarts = 3}});
  run.join(0);
  run.handle(0, Reserved{});
  auto failure = kFailure;
  failure.report.ends_run = true;
  run.handle(0, failure);
  run.handle(0, Stopped{0});
  EXPECT_TRUE(run.ended());
  EXPECT_TRUE(run.last<End>().failure->ends_run);
}

TEST(Coordinator, RestartsOnlyWhenAllNodesHaveStopped) {
  FakeRun run({.shared = {.min_nodes = 2, .max_nodes = 2, .max_restarts = 1}});
  run.join(0);
  run.join(1);
  run.handle(0, Reserved{.port = 1});
  run.handle(1, kFailure);
  EXPECT_THAT(run.told<Stop>(), ElementsAre(0, 1));
  EXPECT_EQ(run.last<Stop>().notice, "rank 3 exited with code 1; restart 1 of 1");
  run.forget();
  run.handle(1, Stopped{0});
  EXPECT_THAT(run.told<Reserve>(), IsEmpty());
  run.handle(0, Stopped{0});
  EXPECT_THAT(run.told<Reserve>(), ElementsAre(0));
  run.handle(0, Reserved{.port = 2});
  EXPECT_EQ(run.assignment_of(1).restarts, 1);
  EXPECT_EQ(run.assignment_of(1).attempt, 1);
  EXPECT_EQ(run.assignment_of(1).master_port, 2);
}

TEST(Coordinator, ReportsTheFirstFailureWhenNoRestartIsLeft) {
  FakeRun run({.shared = {.min_nodes = 2, .max_nodes = 2}});
  run.join(0);
  run.join(1);
  run.handle(0, Reserved{});
  run.handle(1, kFailure);
  run.handle(0, Failed{.attempt = 0, .report = {.first = {.rank = 0, .code = 9}}});
  run.handle(0, Stopped{0});
  EXPECT_FALSE(run.ended());
  run.handle(1, Stopped{0});
  EXPECT_THAT(run.told<End>(), ElementsAre(0, 1));
  EXPECT_EQ(run.last<End>().failure->first.rank, 3);
}

TEST(Coordinator, IgnoresMessagesOfEarlierAttempts) {
  FakeRun run({.shared = {.min_nodes = 1, .max_nodes = 1, .max_restarts = 3}});
  run.join(0);
  run.handle(0, Reserved{});
  run.handle(0, kFailure);
  run.handle(0, Stopped{0});
  run.handle(0, Reserved{});
  run.forget();
  run.handle(0, kFailure);
  run.handle(0, Finished{0});
  EXPECT_THAT(run.told<Stop>(), IsEmpty());
  EXPECT_FALSE(run.ended());
}

TEST(Coordinator, WaitsForMoreNodesUntilTheLastCallEnds) {
  FakeRun run({.shared = {.min_nodes = 1, .max_nodes = 3}, .last_call_timeout = 30s});
  run.join(0);
  EXPECT_EQ(run.poll_timeout(), 30s);
  run.wait(20s);
  run.join(1);
  EXPECT_THAT(run.told<Reserve>(), IsEmpty());
  run.wait(10s);
  EXPECT_THAT(run.told<Reserve>(), ElementsAre(0));
}

TEST(Coordinator, FailsWhenTooFewNodesArrive) {
  FakeRun run({.shared = {.min_nodes = 2, .max_nodes = 2}, .numbered = true, .join_timeout = 60s});
  run.join(0, {.node_rank = 0});
  EXPECT_EQ(run.poll_timeout(), 60s);
  run.wait(60s);
  EXPECT_TRUE(run.ended());
  EXPECT_THAT(run.last<End>().failure->reason,
              HasSubstr("only 1 of 2 nodes joined within 60 s: node-rank 1 is missing"));
  run.join(1, {.node_rank = 1});
  EXPECT_EQ(run.last<Refused>().reason, "the run has ended");
}

TEST(Coordinator, AddsALateNodeWithoutCountingARestart) {
  FakeRun run({.shared = {.min_nodes = 1, .max_nodes = 2, .max_restarts = 0}, .last_call_timeout = 0s});
  run.join(0);
  run.wait(0s);
  run.handle(0, Reserved{});
  run.join(1, {.host = "late"});
  ASSERT_EQ(run.poll_timeout(), 1s) << "for more of them";
  run.wait(1s);
  EXPECT_THAT(run.told<Stop>(), ElementsAre(0));
  EXPECT_THAT(run.last<Stop>().notice, HasSubstr("a node joined"));
  run.handle(0, Stopped{0});
  run.handle(0, Reserved{});
  EXPECT_EQ(run.assignment_of(1).nodes, 2);
  EXPECT_EQ(run.assignment_of(1).restarts, 0);
}

TEST(Coordinator, KeepsASpareNode) {
  FakeRun run({.shared = {.min_nodes = 2, .max_nodes = 2, .max_restarts = 1}});
  run.join(0);
  run.join(1);
  run.handle(0, Reserved{});
  run.join(2);
  EXPECT_THAT(run.told<Stop>(), IsEmpty());
  run.lose(1);
  EXPECT_THAT(run.told<Stop>(), ElementsAre(0));
  EXPECT_THAT(run.last<Stop>().notice, HasSubstr("node 1"));
  run.handle(0, Stopped{0});
  run.handle(0, Reserved{});
  EXPECT_EQ(run.assignment_of(2).node_rank, 1);
}

TEST(Coordinator, WaitsForALostNodeToComeBack) {
  FakeRun run({.shared = {.min_nodes = 2, .max_nodes = 2, .max_restarts = 1}, .join_timeout = 60s});
  run.join(0);
  run.join(1);
  run.handle(0, Reserved{});
  run.lose(1);
  run.handle(0, Stopped{0});
  run.forget();
  run.wait(59s);
  EXPECT_FALSE(run.ended());
  run.join(2);
  EXPECT_THAT(run.told<Reserve>(), ElementsAre(0));
}

TEST(Coordinator, ContinuesWithFewerNodes) {
  FakeRun run({.shared = {.min_nodes = 1, .max_nodes = 2, .max_restarts = 1}});
  run.join(0);
  run.join(1);
  run.handle(0, Reserved{});
  run.lose(0);
  run.handle(1, Stopped{0});
  run.handle(1, Reserved{});
  EXPECT_EQ(run.assignment_of(1).nodes, 1);
  EXPECT_EQ(run.assignment_of(1).node_rank, 0);
}

TEST(Coordinator, DoesNotWaitForFinishedNodes) {
  FakeRun run({.shared = {.min_nodes = 2, .max_nodes = 2}});
  run.join(0);
  run.join(1);
  run.handle(0, Reserved{});
  run.handle(1, Finished{0});
  run.lose(1);
  EXPECT_FALSE(run.ended());
  run.handle(0, Finished{0});
  EXPECT_TRUE(run.ended());
  EXPECT_FALSE(run.last<End>().failure);
}

TEST(Coordinator, DoesNotWaitForeverForANodeThatDoesNotStop) {
  FakeRun run({.shared = {.min_nodes = 2, .max_nodes = 2}});
  run.join(0, {.host = "frozen", .grace_period_ms = 20'000});
  run.join(1, {.host = "b", .grace_period_ms = 5'000});
  run.handle(0, Reserved{});
  run.handle(1, kFailure);
  run.handle(1, Stopped{0});
  ASSERT_EQ(run.poll_timeout(), 20s + 30s) << "the longest grace period, and time for SIGKILL";
  run.wait(49s);
  EXPECT_FALSE(run.ended());
  run.wait(1s);
  EXPECT_TRUE(run.ended());
  EXPECT_THAT(run.told<Notice>(), ElementsAre(1));
  EXPECT_THAT(run.last<Notice>().text, HasSubstr("node 0 (frozen) did not stop its ranks within 50 s"));
  EXPECT_EQ(run.last<End>().failure->first.rank, 3);
}

TEST(Coordinator, RefusesOptionsThatDifferWithBothValuesAndHosts) {
  const SharedOptions shared{.run_id = "7", .min_nodes = 2, .max_nodes = 2};
  FakeRun run({.shared = shared, .host = "a"});
  const auto refusal = [&](const auto& change) {
    NodeInfo info{.shared = shared, .host = "b"};
    change(info.shared);
    const auto why = run.join_with_own_options(1, info);
    EXPECT_EQ(run.last<Refused>().reason, why);
    return why;
  };
  const std::string begin = "the node on b has ";
  const std::string middle = ", but the node on a, which coordinates the run, has ";
  const std::string same = "; start the launchers of all nodes of a run with the same values";
  EXPECT_EQ(refusal([](auto& own) { own.min_nodes = own.max_nodes = 3; }),
            begin + "--nnodes 3" + middle + "--nnodes 2" + same);
  EXPECT_EQ(refusal([](auto& own) { own.min_nodes = 1; }),
            begin + "--nnodes 1:2" + middle + "--nnodes 2" + same);
  EXPECT_EQ(refusal([](auto& own) {
              own.run_id = "8";
              own.max_restarts = 3;
            }),
            begin + "--rdzv-id 8 and --max-restarts 3" + middle + "--rdzv-id 7 and --max-restarts 0" + same);
  const std::string install = "; install the same version on all nodes";
  EXPECT_EQ(refusal([](auto& own) { own.lockstep = "99.1"; }),
            begin + "Lockstep 99.1" + middle + "Lockstep " + lockstep::version() + install);
  EXPECT_THAT(refusal([](auto& own) { own.messages = 70; }), HasSubstr(" with format 70 of messages, but"));
  EXPECT_THAT(run.told<Reserve>(), IsEmpty());
  EXPECT_EQ(run.join(2), "");
  EXPECT_EQ(run.join(3), "");
  EXPECT_THAT(run.told<Reserve>(), ElementsAre(2));
}

TEST(Coordinator, RemovesOnlyNodesThatDoNotStop) {
  FakeRun run({.shared = {.min_nodes = 2, .max_nodes = 3, .max_restarts = 1}});
  for (int node = 0; node < 3; ++node) run.join(node);
  run.handle(0, Reserved{});
  run.handle(2, kFailure);
  run.handle(0, Stopped{0});
  run.handle(2, Stopped{0});
  run.forget();
  run.wait(*run.poll_timeout());
  EXPECT_THAT(run.told<Refused>(), ElementsAre(1));
  EXPECT_THAT(run.told<Notice>(), ElementsAre(0, 2));
  EXPECT_THAT(run.told<Reserve>(), ElementsAre(0));
  run.handle(0, Reserved{});
  EXPECT_THAT(run.told<Start>(), ElementsAre(0, 2));
}

TEST(Coordinator, WaitsForTheCauseOfALostPeer) {
  const Failed consequence{.attempt = 0, .consequence = true, .report = {.first = {.rank = 0, .code = 1}}};
  FakeRun told({.shared = {.min_nodes = 2, .max_nodes = 2}});
  told.join(0);
  told.join(1);
  told.handle(0, Reserved{});
  told.handle(0, consequence);
  EXPECT_THAT(told.told<Stop>(), IsEmpty());
  told.handle(1, kFailure);
  EXPECT_THAT(told.told<Stop>(), ElementsAre(0, 1));
  told.handle(0, Stopped{0});
  told.handle(1, Stopped{0});
  EXPECT_EQ(told.last<End>().failure->first.rank, 3);

  FakeRun silent({.shared = {.min_nodes = 2, .max_nodes = 2}});
  silent.join(0);
  silent.join(1);
  silent.handle(0, Reserved{});
  silent.handle(0, consequence);
  silent.wait(*silent.poll_timeout());
  EXPECT_THAT(silent.told<Stop>(), ElementsAre(0, 1));
}

TEST(Coordinator, EndsWithTheCoordinatingLauncher) {
  FakeRun run({.shared = {.min_nodes = 1, .max_nodes = 2, .max_restarts = 5}});
  run.join(0, {.host = "a", .is_host = true});
  run.join(1);
  run.handle(0, Reserved{});
  run.handle(0, Leaving{"its launcher received SIGINT", SIGINT});
  EXPECT_THAT(run.told<End>(), ElementsAre(1));
  EXPECT_EQ(run.last<End>().signal, SIGINT);
  EXPECT_THAT(run.told<Stop>(), IsEmpty());
  EXPECT_THAT(run.last<End>().failure->reason, HasSubstr("the launcher on a"));
}

TEST(Coordinator, DoesNotWaitForeverForThePort) {
  FakeRun run({.shared = {.min_nodes = 2, .max_nodes = 2}});
  run.join(0);
  run.join(1);
  ASSERT_TRUE(run.poll_timeout());
  run.wait(*run.poll_timeout());
  EXPECT_THAT(run.last<Stop>().notice, HasSubstr("does not answer"));
  EXPECT_THAT(run.told<Refused>(), ElementsAre(0)) << "it would never end";
}

TEST(Coordinator, DoesNotRestartFinishedNodesForANewNode) {
  FakeRun run({.shared = {.min_nodes = 2, .max_nodes = 3}, .last_call_timeout = 0s});
  run.join(0);
  run.join(1);
  run.wait(0s);
  run.handle(0, Reserved{});
  run.handle(1, Finished{0});
  run.join(2);
  run.wait(2s);
  EXPECT_THAT(run.told<Stop>(), IsEmpty());
  run.handle(0, Finished{0});
  EXPECT_THAT(run.told<End>(), ElementsAre(0, 1, 2));
}

}  // namespace
}  // namespace lockstep::launch
