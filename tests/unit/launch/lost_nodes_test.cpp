// SPDX-License-Identifier: BSD-3-Clause
// What the coordinator does when a node is lost and the others go on.
#include <memory>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/launch/fake_run.h"

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

SharedOptions with_losses(const char* on_loss, int nodes, int max_restarts) {
  return {.min_nodes = nodes, .max_nodes = nodes, .max_restarts = max_restarts, .on_loss = on_loss};
}

NodeInfo numbered_node(int rank, int ranks = 2) {
  return {.node_rank = rank,
          .ranks = ranks,
          .host = fmt::format("h{}", rank),
          .is_host = rank == 0,
          .memory = fmt::format("m{}", rank),
          .threads = std::vector(static_cast<std::size_t>(ranks), 3)};
}

// Nodes 0 .. n-1 that run, with these numbers.
std::unique_ptr<FakeRun> running(const char* on_loss, int nodes, int max_restarts, int ranks_of_first = 2) {
  auto run = std::make_unique<FakeRun>(CoordinatorOptions{.shared = with_losses(on_loss, nodes, max_restarts),
                                                          .host = "h0",
                                                          .numbered = true,
                                                          .join_timeout = 90s});
  for (int rank = 0; rank < nodes; ++rank)
    run->join(rank, numbered_node(rank, rank == 0 ? ranks_of_first : 2));
  run->handle(0, Reserved{.address = "a", .port = 77, .store_port = 78, .store_token = "t"});
  run->forget();
  return run;
}

TEST(Coordinator, LetsOthersGoOnUntilALauncherTakesThePlaceOfALostOne) {
  const auto run = running("replace", 2, 4);
  run->lose(1);
  EXPECT_THAT(run->told<Stop>(), IsEmpty());
  EXPECT_THAT(run->told<Adopt>(), IsEmpty());
  EXPECT_EQ(run->last<Lost>().node_rank, 1);
  EXPECT_EQ(run->last<Lost>().epoch, 1);
  EXPECT_EQ(
      run->last<Lost>().notice,
      "node 1 (h1) was lost: its connection closed; the other ranks wait 90 s for a launcher that takes its place: "
      "--node-rank 1");
  EXPECT_EQ(run->poll_timeout(), 90s);
  EXPECT_THAT(run->join(5, numbered_node(1, 3)),
              HasSubstr("has 3 ranks of role default, but the lost node 1"));
  EXPECT_THAT(run->join(6, numbered_node(0)), HasSubstr("has --node-rank 0, but that of h0 has it already"));
  run->wait(89s);
  EXPECT_EQ(run->join(7, numbered_node(1)), "");
  EXPECT_THAT(run->told<Start>(), ElementsAre(7));
  const auto again = run->assignment_of(7);
  EXPECT_EQ(again.attempt, 0);
  EXPECT_EQ(again.epoch, 1);
  EXPECT_EQ(again.first_rank, 2);
  EXPECT_EQ(again.restarts, 2);
  EXPECT_EQ(again.store_port, 78);
  EXPECT_EQ(run->last<Restarts>().restarts, 2);
  EXPECT_EQ(run->poll_timeout(), std::nullopt);
  // It is lost, too.
  run->lose(7);
  EXPECT_EQ(run->last<Lost>().epoch, 2);
  EXPECT_EQ(run->join(8, numbered_node(1)), "");
  EXPECT_EQ(run->assignment_of(8).epoch, 2);
  run->handle(0, Finished{0});
  run->handle(8, Finished{0});
  EXPECT_FALSE(run->last<End>().failure);
}

// Its launcher serves the store of the run.
TEST(Coordinator, NumbersItsHostFirstEvenIfItJoinsLater) {
  FakeRun run({.shared = with_losses("replace", 2, 4), .host = "h0", .join_timeout = 90s});
  run.join(0, {.ranks = 2, .host = "h1"});
  run.join(1, {.ranks = 2, .host = "h0", .is_host = true});
  EXPECT_THAT(run.told<Reserve>(), ElementsAre(1));
  run.handle(1, Reserved{.address = "a", .port = 77, .store_port = 78, .store_token = "t"});
  EXPECT_EQ(run.assignment_of(1).first_rank, 0);
  EXPECT_EQ(run.assignment_of(0).first_rank, 2);
  run.lose(0);
  EXPECT_THAT(run.told<Stop>(), IsEmpty());
  EXPECT_EQ(run.last<Lost>().node_rank, 1);
}

TEST(Coordinator, EndsTheRunIfNobodyTakesThePlace) {
  const auto run = running("replace", 2, 40);
  run->lose(1);
  run->wait(90s);
  EXPECT_THAT(run->told<Stop>(), ElementsAre(0));
  run->handle(0, Stopped{0});
  EXPECT_EQ(run->last<End>().failure->reason,
            "node 1 (h1) was lost: its connection closed; no launcher has taken its place within 90 s");
  EXPECT_EQ(run->join(7, numbered_node(1)), "the run has ended");
}

// All start again, or the run ends.
TEST(Coordinator, StopsTheOthersIfTheyCannotGoOnWithoutALostNode) {
  {
    const auto run = running("replace", 2, 1);  // for two ranks
    run->lose(1);
    EXPECT_EQ(run->last<Stop>().notice, "node 1 (h1) was lost: its connection closed; restart 1 of 1");
  }
  {
    const auto run = running("replace", 3, 4);  // node 1 waits for ranks that are gone
    run->handle(1, Finished{0});
    run->lose(2);
    EXPECT_THAT(run->told<Stop>(), ElementsAre(0, 1));
  }
  {
    const auto run = running("replace", 3, 4);
    run->lose(2);
    run->handle(1, Finished{0});
    EXPECT_THAT(run->told<Stop>(), ElementsAre(0, 1));
  }
  {
    const auto run = running("replace", 2, 4);  // not all are in elastic::run()
    run->lose(1);
    run->handle(0, Failed{.attempt = 0, .report = run->last<Lost>().report});
    EXPECT_EQ(run->last<Stop>().notice, "node 1 (h1) was lost: its connection closed; restart 1 of 4");
  }
  {
    const auto run = running("replace", 2, 4);  // a stop signal
    run->handle(1, Leaving{"its launcher received SIGTERM", 15});
    EXPECT_THAT(run->told<Stop>(), ElementsAre(0));
  }
  {
    const auto run = running("restart", 2, 4);
    run->lose(1);
    EXPECT_THAT(run->told<Stop>(), ElementsAre(0));
  }
}

TEST(Coordinator, HasTheNodeWithTheFewestRanksAdoptALostOne) {
  const auto run = running("oversubscribe", 4, 40, 3);
  run->lose(3);
  EXPECT_THAT(run->told<Adopt>(), ElementsAre(1));  // 3, 2, 2
  EXPECT_EQ(run->last<Adopt>().node.node_rank, 3);
  EXPECT_EQ(run->last<Adopt>().node.memory, "m3");
  EXPECT_THAT(run->last<Adopt>().node.threads, ElementsAre(3, 3));
  EXPECT_EQ(run->last<Lost>().notice,
            "node 3 (h3) was lost: its connection closed; the launcher of node 1 (h1) starts its ranks");
  auto adopter = numbered_node(3);
  adopter.memory = "LOCKSTEP_HOST_ID=m3";
  adopter.is_adopter = true;
  EXPECT_EQ(run->join(13, adopter), "");
  EXPECT_EQ(run->assignment_of(13).epoch, 1);
  EXPECT_THAT(run->join(23, numbered_node(3)), HasSubstr("has it already"));
  run->forget();
  run->lose(2);
  EXPECT_THAT(run->told<Adopt>(), ElementsAre(0));  // 3, 4
  run->wait(60s);
  EXPECT_THAT(run->told<Stop>(), ElementsAre(0, 1, 13));
  EXPECT_THAT(run->last<Stop>().notice, HasSubstr("no launcher has taken its place within 60 s"));
}

TEST(Coordinator, ChoosesAnotherAdopterIfItsHostIsLostBeforeItHasJoined) {
  const auto run = running("oversubscribe", 4, 40, 3);
  run->lose(3);
  EXPECT_THAT(run->told<Adopt>(), ElementsAre(1));  // 3, 2, 2
  run->forget();
  run->wait(59s);
  run->lose(1);
  EXPECT_THAT(run->told<Adopt>(), ElementsAre(2, 0));  // 3, 2; 3, 4
  EXPECT_EQ(run->last<Adopt>().node.node_rank, 3);
  EXPECT_EQ(run->poll_timeout(), 60s);
  for (const int rank : {1, 3}) {
    auto adopter = numbered_node(rank);
    adopter.is_adopter = true;
    EXPECT_EQ(run->join(10 + rank, adopter), "");
    EXPECT_EQ(run->assignment_of(10 + rank).epoch, 1);
  }
  EXPECT_EQ(run->poll_timeout(), std::nullopt);
  EXPECT_THAT(run->told<Stop>(), IsEmpty());
}

TEST(Coordinator, RefusesToOversubscribeNodesThatShareMemory) {
  FakeRun run({.shared = with_losses("oversubscribe", 2, 4), .host = "h0", .numbered = true});
  run.join(0, numbered_node(0));
  auto twin = numbered_node(1);
  twin.memory = "m0";
  EXPECT_THAT(run.join(1, twin), HasSubstr("the nodes on h0 and h1 share the memory of one host"));
}

}  // namespace
}  // namespace lockstep::launch
