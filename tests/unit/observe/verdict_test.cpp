// SPDX-License-Identifier: BSD-3-Clause
#include "observe/verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runs.h"

namespace lockstep::testing {
namespace {

using observe::Cause;
using observe::judge;
using observe::Life;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Rank 1 of three has not made call 2.
observe::Run late_run() {
  return run_of({{member(0, 3, {call(1, 5), call(2, 4.2)}, true)},
                 {member(1, 3, {call(1, 5)}, false)},
                 {member(2, 3, {call(1, 5), call(2, 3)}, true)}});
}

TEST(Verdict, NamesARankThatRunsItsOwnCode) {
  const auto verdict = judge(late_run());
  EXPECT_EQ(verdict.cause, Cause::missing);
  EXPECT_THAT(verdict.ranks, ElementsAre(1));
  EXPECT_EQ(
      verdict.text,
      "rank 1 (pid 101) has not entered all_reduce #2 of Float[4] at train.cpp:40 of group default, for which "
      "ranks 0 and 2 have waited 4.2 s. It runs the program's own code (its thread is running); its last call was "
      "all_reduce #1 of Float[4] at train.cpp:40, 5.0 s ago.");
}

TEST(Verdict, NamesAStoppedADeadAndAFinishedRank) {
  auto run = late_run();
  run.ranks[1].life = Life::stopped;
  EXPECT_EQ(judge(run).cause, Cause::stopped);
  EXPECT_THAT(judge(run).text, HasSubstr("It is stopped by a signal or a debugger"));
  run.ranks[1].life = Life::dead;
  EXPECT_EQ(judge(run).cause, Cause::dead);
  EXPECT_THAT(judge(run).text, HasSubstr("It is dead; its last call was all_reduce #1"));
  run.ranks[1].life = Life::finished;
  EXPECT_EQ(judge(run).cause, Cause::missing);
  EXPECT_THAT(judge(run).text, HasSubstr("It has left the run, as with uneven data"));
}

TEST(Verdict, ARankThatWasStoppedInsideItsCallIsNamed) {
  auto run = late_run();
  run.ranks[1].groups[0] = member(1, 3, {call(1, 5), call(2, 4)}, true);
  run.ranks[1].life = Life::stopped;
  EXPECT_EQ(judge(run).cause, Cause::stopped);
  EXPECT_THAT(judge(run).ranks, ElementsAre(1));
}

TEST(Verdict, IsPatientWithAHealthyRun) {
  auto run =
      run_of({{member(0, 2, {call(1, 0.5), call(2, 0.2)}, true)}, {member(1, 2, {call(1, 0.5)}, false)}});
  EXPECT_EQ(judge(run).cause, Cause::none);
  EXPECT_THAT(judge(run).ranks, IsEmpty());
  EXPECT_THAT(judge(run).text, AllOf(HasSubstr("No rank is late"), HasSubstr("rank 0 (pid 100)")));
  run.ranks[0].groups[0].failed = 2;
  EXPECT_EQ(judge(run).cause, Cause::missing) << "the call has failed";
  EXPECT_EQ(judge(run_of({{member(0, 2, {call(1, 50)}, false)}, {member(1, 2, {call(1, 50)}, false)}})).cause,
            Cause::none);
  EXPECT_EQ(judge({}).cause, Cause::none);
}

TEST(Verdict, SaysThatRanksWaitInCallsThatAreNotSeenHere) {
  auto run = run_of({{member(0, 2, {call(1, 9)}, false)}, {member(1, 2, {call(1, 9)}, false)}});
  for (auto& rank : run.ranks) {
    rank.progress.emplace();
    rank.progress->phase = Phase::communication;
    rank.progress->phase_since = kNow - kSecond / 2;
  }
  EXPECT_THAT(judge(run).text, HasSubstr("all run the program's own code"));
  run.ranks[1].progress->phase_since = kNow - 3 * kSecond;
  EXPECT_EQ(judge(run).cause, Cause::none);
  EXPECT_THAT(judge(run).text,
              HasSubstr("rank 1 has waited for more than a second in a call with ranks that are"));
}
TEST(Verdict, NamesTheMinorityOfAMismatch) {
  const auto run = run_of({{member(0, 3, {call(1, 2)}, true)},
                           {member(1, 3, {call(1, 2, "broadcast")}, true)},
                           {member(2, 3, {call(1, 2)}, true)}});
  const auto verdict = judge(run);
  EXPECT_EQ(verdict.cause, Cause::mismatch);
  EXPECT_THAT(verdict.ranks, ElementsAre(1));
  EXPECT_THAT(verdict.text,
              HasSubstr("ranks 0 and 2 made all_reduce #1 of Float[4] at train.cpp:40, but rank 1 made "
                        "broadcast #1 of Float[4] at train.cpp:40"));
}

TEST(Verdict, NamesBothSidesOfAMismatchOfTwoRanks) {
  auto wide = call(1, 2);
  wide.shape = {5};
  const auto run = run_of({{member(0, 2, {call(1, 2)}, true)}, {member(1, 2, {wide}, true)}});
  EXPECT_THAT(judge(run).ranks, ElementsAre(0, 1));
  auto uneven = run;
  for (auto& rank : uneven.ranks) rank.groups[0].calls[0].name = "all_gather";
  EXPECT_EQ(judge(uneven).cause, Cause::none) << "shapes of an all_gather may differ";
}

TEST(Verdict, FollowsWaitsToTheRankThatCausesThem) {
  // Rank 0 waits for rank 1 in a, which waits for rank 2 in b.
  const auto run = run_of({{member(0, 2, {call(1, 9)}, true, "a")},
                           {member(1, 2, {}, false, "a"), member(0, 2, {call(1, 8)}, true, "b")},
                           {member(1, 2, {}, false, "b")}});
  const auto verdict = judge(run);
  EXPECT_THAT(verdict.ranks, ElementsAre(2));
  EXPECT_THAT(verdict.text, AllOf(HasSubstr("of group b, for which rank 1 has waited 8.0 s"),
                                  HasSubstr("it has made no call yet")));
}

TEST(Verdict, NamesADeadlockOfTwoGroups) {
  const auto run = run_of({{member(0, 2, {call(1, 9)}, true, "a"), member(0, 2, {}, false, "b")},
                           {member(1, 2, {}, false, "a"), member(1, 2, {call(1, 8)}, true, "b")}});
  const auto verdict = judge(run);
  EXPECT_EQ(verdict.cause, Cause::deadlock);
  EXPECT_THAT(verdict.ranks, ElementsAre(0, 1));
  EXPECT_THAT(verdict.text,
              AllOf(HasSubstr("rank 0 (pid 100) has waited 9.0 s in all_reduce #1"),
                    HasSubstr("of group a, and rank 1 (pid 101) has waited 8.0 s"), HasSubstr("of group b")));
}

TEST(Verdict, AReceiverWaitsForItsSender) {
  auto receive = call(1, 3, "recv");
  receive.peer = 1;
  const auto run = run_of({{member(0, 2, {receive}, true)}, {member(1, 2, {}, false)}});
  EXPECT_EQ(judge(run).cause, Cause::missing);
  EXPECT_THAT(judge(run).ranks, ElementsAre(1));
  EXPECT_THAT(judge(run).text, HasSubstr("recv #1 of Float[4] from rank 1 at train.cpp:40"));
}

// Numbered from `first`, as many as a rank keeps.
std::vector<observe::Call> calls_from(std::uint64_t first, const std::string& name) {
  std::vector<observe::Call> calls;
  for (std::uint64_t i = 0; i < 64; ++i) {
    calls.push_back(call(i + 1, 3, name));
    calls.back().number = first + i;
    calls.back().peer = 0;
  }
  return calls;
}

TEST(Verdict, ARankWaitsForACallThatItNoLongerKeeps) {
  auto waiting = member(0, 2, calls_from(2, "all_reduce"), true);
  waiting.awaited = 1;
  const auto verdict = judge(run_of({{waiting}, {member(1, 2, {}, false)}}));
  EXPECT_EQ(verdict.cause, Cause::missing);
  EXPECT_THAT(verdict.ranks, ElementsAre(1));
}

TEST(Verdict, ARankThatKeepsNoCollectiveIsNotLate) {
  const auto run = run_of({{member(0, 3, {call(9, 5), call(10, 4)}, true)},
                           {member(1, 3, calls_from(11, "send"), false)},
                           {member(2, 3, {call(9, 5)}, false)}});
  EXPECT_THAT(judge(run).ranks, ElementsAre(2));
}

}  // namespace
}  // namespace lockstep::testing
