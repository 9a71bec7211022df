// SPDX-License-Identifier: BSD-3-Clause
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/launch/coordination.h>

namespace lockstep::launch {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Clock = Coordination::Clock;

// A run whose clock stands still unless it is told to go on.
class FakeRun {
 public:
  explicit FakeRun(const CoordinationOptions& options) : coordination_(options, now_) {}

  void join(int node, const NodeInfo& info = {}) {
    coordination_.join(node, info, now_);
    collect();
  }
  void hear(int node, const FromNode& message) {
    coordination_.hear(node, message, now_);
    collect();
  }
  void lose(int node) {
    coordination_.lose(node, "its connection closed", now_);
    collect();
  }
  void wait(Clock::duration span) {
    now_ += span;
    coordination_.tick(now_);
    collect();
  }
  bool ended() const { return coordination_.ended(); }
  std::optional<Clock::duration> patience() const {
    const auto tick = coordination_.next_tick();
    return tick ? std::optional(*tick - now_) : std::nullopt;
  }

  // The nodes that were told so since the last question, in the order of the telling.
  template <typename Kind>
  std::vector<int> told() {
    std::vector<int> nodes;
    for (const auto& message : messages_) {
      if (std::holds_alternative<Kind>(message.what)) nodes.push_back(message.to);
    }
    return nodes;
  }
  template <typename Kind>
  Kind last() {
    for (auto at = messages_.rbegin(); at != messages_.rend(); ++at) {
      if (const auto* found = std::get_if<Kind>(&at->what)) return *found;
    }
    ADD_FAILURE() << "nobody was told that";
    return {};
  }
  NodePlace place_of(int node) {
    for (auto at = messages_.rbegin(); at != messages_.rend(); ++at) {
      const auto* start = std::get_if<Start>(&at->what);
      if (start != nullptr && at->to == node) return start->place;
    }
    ADD_FAILURE() << "node " << node << " was not started";
    return {};
  }
  void forget() { messages_.clear(); }

 private:
  void collect() {
    for (auto& message : coordination_.take_messages()) messages_.push_back(std::move(message));
  }

  Clock::time_point now_{};
  Coordination coordination_;
  std::vector<Coordination::Message> messages_;
};

const Failed kFailure{.attempt = 0, .report = {.first = {.rank = 3, .code = 1}, .host = "b"}};

TEST(Coordination, StartsWhenAllHaveComeAndThePortIsHeld) {
  FakeRun run({.min_nodes = 2, .max_nodes = 2});
  run.join(0, {.ranks = 2, .host = "a"});
  EXPECT_THAT(run.told<Reserve>(), IsEmpty());
  run.join(1, {.ranks = 3, .host = "b"});
  EXPECT_THAT(run.told<Reserve>(), ElementsAre(0));
  EXPECT_THAT(run.told<Start>(), IsEmpty());
  run.hear(0, Reserved{.address = "10.0.0.1", .port = 77});
  EXPECT_THAT(run.told<Start>(), ElementsAre(0, 1));
  const NodePlace second = run.place_of(1);
  EXPECT_EQ(second.first_rank, 2);
  EXPECT_EQ(second.world_size, 5);
  EXPECT_EQ(second.node_rank, 1);
  EXPECT_EQ(second.nodes, 2);
  EXPECT_EQ(second.master_addr, "10.0.0.1");
  EXPECT_EQ(second.master_port, 77);
  EXPECT_EQ(run.patience(), std::nullopt) << "nothing to wake up for";
}

TEST(Coordination, NumbersRolesApart) {
  FakeRun run({.min_nodes = 3, .max_nodes = 3});
  run.join(0, {.ranks = 2, .role = "trainer"});
  run.join(1, {.ranks = 1, .role = "reader"});
  run.join(2, {.ranks = 2, .role = "trainer"});
  run.hear(0, Reserved{});
  EXPECT_EQ(run.place_of(2).first_rank, 3);
  EXPECT_EQ(run.place_of(2).first_role_rank, 2);
  EXPECT_EQ(run.place_of(2).role_world_size, 4);
  EXPECT_EQ(run.place_of(1).first_role_rank, 0);
  EXPECT_EQ(run.place_of(1).role_world_size, 1);
}

TEST(Coordination, FollowsTheNumbersThatNodesWereGiven) {
  FakeRun run({.min_nodes = 2, .max_nodes = 2, .numbered = true, .master_addr = "first"});
  run.join(0, {.node_rank = 1});
  run.join(1, {.node_rank = 1, .host = "twin"});
  EXPECT_THAT(run.last<Refused>().reason, HasSubstr("node-rank 1 is taken"));
  run.join(2, {.node_rank = 5});
  EXPECT_THAT(run.last<Refused>().reason, HasSubstr("expects 2 nodes"));
  run.join(3, {});
  EXPECT_THAT(run.last<Refused>().reason, HasSubstr("this one has none"));
  run.join(4, {.node_rank = 0});
  EXPECT_THAT(run.told<Reserve>(), ElementsAre(4));
  run.hear(4, Reserved{.address = "10.0.0.1"});
  EXPECT_EQ(run.place_of(0).node_rank, 1);
  EXPECT_EQ(run.place_of(0).master_addr, "first");
}

TEST(Coordination, EndsWellWhenAllHaveFinished) {
  FakeRun run({.min_nodes = 2, .max_nodes = 2});
  run.join(0);
  run.join(1);
  run.hear(0, Reserved{});
  run.hear(1, Finished{0});
  EXPECT_FALSE(run.ended());
  run.hear(0, Finished{0});
  EXPECT_TRUE(run.ended());
  EXPECT_THAT(run.told<End>(), ElementsAre(0, 1));
  EXPECT_FALSE(run.last<End>().failure);
}

TEST(Coordination, StartsAnewOnlyWhenNothingIsLeftAnywhere) {
  FakeRun run({.min_nodes = 2, .max_nodes = 2, .max_restarts = 1});
  run.join(0);
  run.join(1);
  run.hear(0, Reserved{.port = 1});
  run.hear(1, kFailure);
  EXPECT_THAT(run.told<Stop>(), ElementsAre(0, 1));
  EXPECT_EQ(run.last<Stop>().notice, "rank 3 exited with code 1; restart 1 of 1");
  run.forget();
  run.hear(1, Stopped{0});
  EXPECT_THAT(run.told<Reserve>(), IsEmpty());
  run.hear(0, Stopped{0});
  EXPECT_THAT(run.told<Reserve>(), ElementsAre(0));
  run.hear(0, Reserved{.port = 2});
  EXPECT_EQ(run.place_of(1).restarts, 1);
  EXPECT_EQ(run.place_of(1).attempt, 1);
  EXPECT_EQ(run.place_of(1).master_port, 2);
}

TEST(Coordination, TellsTheFirstFailureWhenNoRestartIsLeft) {
  FakeRun run({.min_nodes = 2, .max_nodes = 2});
  run.join(0);
  run.join(1);
  run.hear(0, Reserved{});
  run.hear(1, kFailure);
  run.hear(0, Failed{.attempt = 0, .report = {.first = {.rank = 0, .code = 9}}});
  run.hear(0, Stopped{0});
  EXPECT_FALSE(run.ended());
  run.hear(1, Stopped{0});
  EXPECT_THAT(run.told<End>(), ElementsAre(0, 1));
  EXPECT_EQ(run.last<End>().failure->first.rank, 3);
}

TEST(Coordination, HearsNothingOfAnAttemptThatIsOver) {
  FakeRun run({.min_nodes = 1, .max_nodes = 1, .max_restarts = 3});
  run.join(0);
  run.hear(0, Reserved{});
  run.hear(0, kFailure);
  run.hear(0, Stopped{0});
  run.hear(0, Reserved{});
  run.forget();
  run.hear(0, kFailure);
  run.hear(0, Finished{0});
  EXPECT_THAT(run.told<Stop>(), IsEmpty());
  EXPECT_FALSE(run.ended());
}

TEST(Coordination, WaitsForMoreNodesUntilTheLastCallEnds) {
  FakeRun run({.min_nodes = 1, .max_nodes = 3, .last_call_timeout = 30s});
  run.join(0);
  EXPECT_EQ(run.patience(), 30s);
  run.wait(20s);
  run.join(1);
  EXPECT_THAT(run.told<Reserve>(), IsEmpty());
  run.wait(10s);
  EXPECT_THAT(run.told<Reserve>(), ElementsAre(0));
}

TEST(Coordination, EndsWhenTooFewCome) {
  FakeRun run({.min_nodes = 2, .max_nodes = 2, .numbered = true, .join_timeout = 60s});
  run.join(0, {.node_rank = 0});
  EXPECT_EQ(run.patience(), 60s);
  run.wait(60s);
  EXPECT_TRUE(run.ended());
  EXPECT_THAT(run.last<End>().failure->reason,
              HasSubstr("only 1 of 2 nodes came within 60 s: node-rank 1 is missing"));
  run.join(1, {.node_rank = 1});
  EXPECT_EQ(run.last<Refused>().reason, "the run has ended");
}

TEST(Coordination, MakesRoomForANodeThatComesLaterWithoutCountingARestart) {
  FakeRun run({.min_nodes = 1, .max_nodes = 2, .max_restarts = 0, .last_call_timeout = 0s});
  run.join(0);
  run.wait(0s);
  run.hear(0, Reserved{});
  run.join(1, {.host = "late"});
  ASSERT_EQ(run.patience(), 1s) << "for more of them";
  run.wait(1s);
  EXPECT_THAT(run.told<Stop>(), ElementsAre(0));
  EXPECT_THAT(run.last<Stop>().notice, HasSubstr("a node joined"));
  run.hear(0, Stopped{0});
  run.hear(0, Reserved{});
  EXPECT_EQ(run.place_of(1).nodes, 2);
  EXPECT_EQ(run.place_of(1).restarts, 0);
}

TEST(Coordination, KeepsANodeTooManyUntilOneIsNeeded) {
  FakeRun run({.min_nodes = 2, .max_nodes = 2, .max_restarts = 1});
  run.join(0);
  run.join(1);
  run.hear(0, Reserved{});
  run.join(2);
  EXPECT_THAT(run.told<Stop>(), IsEmpty());
  run.lose(1);
  EXPECT_THAT(run.told<Stop>(), ElementsAre(0));
  EXPECT_THAT(run.last<Stop>().notice, HasSubstr("node 1"));
  run.hear(0, Stopped{0});
  run.hear(0, Reserved{});
  EXPECT_EQ(run.place_of(2).node_rank, 1);
}

TEST(Coordination, WaitsForALostNodeToComeBack) {
  FakeRun run({.min_nodes = 2, .max_nodes = 2, .max_restarts = 1, .join_timeout = 60s});
  run.join(0);
  run.join(1);
  run.hear(0, Reserved{});
  run.lose(1);
  run.hear(0, Stopped{0});
  run.forget();
  run.wait(59s);
  EXPECT_FALSE(run.ended());
  run.join(2);
  EXPECT_THAT(run.told<Reserve>(), ElementsAre(0));
}

TEST(Coordination, GoesOnWithFewerWhenEnoughAreLeft) {
  FakeRun run({.min_nodes = 1, .max_nodes = 2, .max_restarts = 1});
  run.join(0);
  run.join(1);
  run.hear(0, Reserved{});
  run.lose(0);
  run.hear(1, Stopped{0});
  run.hear(1, Reserved{});
  EXPECT_EQ(run.place_of(1).nodes, 1);
  EXPECT_EQ(run.place_of(1).node_rank, 0);
}

TEST(Coordination, DoesNotMissANodeThatHadFinished) {
  FakeRun run({.min_nodes = 2, .max_nodes = 2});
  run.join(0);
  run.join(1);
  run.hear(0, Reserved{});
  run.hear(1, Finished{0});
  run.lose(1);
  EXPECT_FALSE(run.ended());
  run.hear(0, Finished{0});
  EXPECT_TRUE(run.ended());
  EXPECT_FALSE(run.last<End>().failure);
}

TEST(Coordination, DoesNotWaitForeverForANodeThatDoesNotStop) {
  FakeRun run({.min_nodes = 2, .max_nodes = 2});
  run.join(0);
  run.join(1);
  run.hear(0, Reserved{});
  run.hear(1, kFailure);
  run.hear(1, Stopped{0});
  ASSERT_TRUE(run.patience());
  run.wait(*run.patience());
  EXPECT_TRUE(run.ended());
}

TEST(Coordination, LosesOnlyTheNodesThatDoNotStop) {
  FakeRun run({.min_nodes = 2, .max_nodes = 3, .max_restarts = 1});
  for (int node = 0; node < 3; ++node) run.join(node);
  run.hear(0, Reserved{});
  run.hear(2, kFailure);
  run.hear(0, Stopped{0});
  run.hear(2, Stopped{0});
  run.forget();
  run.wait(*run.patience());
  EXPECT_THAT(run.told<Refused>(), ElementsAre(1));
  EXPECT_THAT(run.told<Reserve>(), ElementsAre(0));
  run.hear(0, Reserved{});
  EXPECT_THAT(run.told<Start>(), ElementsAre(0, 2));
}

TEST(Coordination, WaitsAMomentForTheCauseOfAConsequence) {
  const Failed consequence{.attempt = 0, .consequence = true, .report = {.first = {.rank = 0, .code = 1}}};
  FakeRun told({.min_nodes = 2, .max_nodes = 2});
  told.join(0);
  told.join(1);
  told.hear(0, Reserved{});
  told.hear(0, consequence);
  EXPECT_THAT(told.told<Stop>(), IsEmpty());
  told.hear(1, kFailure);
  EXPECT_THAT(told.told<Stop>(), ElementsAre(0, 1));
  told.hear(0, Stopped{0});
  told.hear(1, Stopped{0});
  EXPECT_EQ(told.last<End>().failure->first.rank, 3);

  FakeRun silent({.min_nodes = 2, .max_nodes = 2});
  silent.join(0);
  silent.join(1);
  silent.hear(0, Reserved{});
  silent.hear(0, consequence);
  silent.wait(*silent.patience());
  EXPECT_THAT(silent.told<Stop>(), ElementsAre(0, 1));
}

TEST(Coordination, EndsWithTheLauncherAtWhichAllMeet) {
  FakeRun run({.min_nodes = 1, .max_nodes = 2, .max_restarts = 5});
  run.join(0, {.host = "a", .is_meeting_point = true});
  run.join(1);
  run.hear(0, Reserved{});
  run.hear(0, Leaving{"its launcher got SIGTERM"});
  EXPECT_THAT(run.told<End>(), ElementsAre(1));
  EXPECT_THAT(run.told<Stop>(), IsEmpty());
  EXPECT_THAT(run.last<End>().failure->reason, HasSubstr("the launcher on a"));
}

TEST(Coordination, DoesNotWaitForeverForThePort) {
  FakeRun run({.min_nodes = 2, .max_nodes = 2});
  run.join(0);
  run.join(1);
  ASSERT_TRUE(run.patience());
  run.wait(*run.patience());
  EXPECT_THAT(run.last<Stop>().notice, HasSubstr("does not answer"));
}

TEST(Coordination, DoesNotStartFinishedNodesAgainForANewOne) {
  FakeRun run({.min_nodes = 2, .max_nodes = 3, .last_call_timeout = 0s});
  run.join(0);
  run.join(1);
  run.wait(0s);
  run.hear(0, Reserved{});
  run.hear(1, Finished{0});
  run.join(2);
  run.wait(2s);
  EXPECT_THAT(run.told<Stop>(), IsEmpty());
  run.hear(0, Finished{0});
  EXPECT_THAT(run.told<End>(), ElementsAre(0, 1, 2));
}

}  // namespace
}  // namespace lockstep::launch
