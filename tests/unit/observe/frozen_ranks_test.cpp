// SPDX-License-Identifier: BSD-3-Clause
#include "observe/frozen_ranks.h"

#include <functional>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "observe/verdict.h"
#include "runs.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using observe::FrozenRanks;
using observe::Life;
using observe::Progress;
using observe::Run;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kLimit = 8s;

// Rank 0 waits for rank 1, which is in forward.
Run waiting() {
  auto run = run_of({{member(0, 2, {call(1, 9), call(2, 8)}, true)}, {member(1, 2, {call(1, 9)}, false)}});
  for (auto& rank : run.ranks) rank.progress = Progress{.phase = Phase::forward, .steps = 7};
  return run;
}

class FrozenRanksTest : public ::testing::Test {
 protected:
  // The ranks that are frozen after so many looks, a second apart, at `run`.
  std::vector<int> look(observe::Run& run, int times) {
    std::vector<int> frozen;
    for (int i = 0; i < times; ++i) {
      frozen.clear();
      for (const auto& each : frozen_.look(run, view_)) frozen.push_back(each.rank->rank);
      run.taken_at += kSecond;
    }
    return frozen;
  }

  std::uint64_t bytes_ = 0;
  bool is_traced_ = false;
  bool waits_in_kernel_ = false;
  observe::ProcessView view_{.bytes = [this](const auto& /*rank*/) { return bytes_; },
                             .is_traced = [this](const auto& /*rank*/) { return is_traced_; },
                             .waits_in_kernel = [this](const auto& /*rank*/) { return waits_in_kernel_; }};
  FrozenRanks frozen_{kLimit};
};

TEST_F(FrozenRanksTest, IsTheOneForWhichOthersWait) {
  auto run = waiting();
  EXPECT_THAT(look(run, 8), IsEmpty());
  EXPECT_THAT(look(run, 1), ElementsAre(1));
  EXPECT_THAT(
      observe::stall_text(run, run.ranks[1]),
      HasSubstr(
          "rank 1 (pid 101) has not entered all_reduce #2 of Float[4] at train.cpp:40 of group default, "
          "for which rank 0 has waited 17.0 s. It has been in forward"));
}

TEST_F(FrozenRanksTest, WhateverARankPublishesIsProgress) {
  auto run = waiting();
  auto& progress = *run.ranks[1].progress;
  const std::vector<std::function<void()>> changes{[&] { ++progress.samples; },
                                                   [&] { ++progress.phase_since; },
                                                   [&] { progress.numbers.emplace_back("loss", 1); },
                                                   [&] { progress.numbers.back().second = 2; },
                                                   [&] { ++progress.reading_since; },
                                                   [&] { ++run.ranks[1].groups[0].completed; }};
  for (const auto& change : changes) {
    EXPECT_THAT(look(run, 8), IsEmpty());
    change();
  }
  EXPECT_THAT(look(run, 9), ElementsAre(1));
}

TEST_F(FrozenRanksTest, BytesCountInCheckpointsAndBatchesOnly) {
  for (const auto phase : {Phase::checkpoint, Phase::data, Phase::other}) {
    auto run = waiting();
    run.ranks[1].progress->phase = phase;
    EXPECT_THAT(look(run, 8), IsEmpty());
    ++bytes_;
    if (phase == Phase::other) {
      EXPECT_THAT(look(run, 1), ElementsAre(1));
    } else {
      EXPECT_THAT(look(run, 8), IsEmpty());
      EXPECT_THAT(look(run, 1), ElementsAre(1));
    }
  }
}

TEST_F(FrozenRanksTest, WaitingForTheDiskIsNotFrozenInCheckpoints) {
  waits_in_kernel_ = true;
  auto run = waiting();
  run.ranks[1].progress->phase = Phase::checkpoint;
  EXPECT_THAT(look(run, 20), IsEmpty());
  waits_in_kernel_ = false;
  EXPECT_THAT(look(run, 7), IsEmpty());
  EXPECT_THAT(look(run, 1), ElementsAre(1));
  waits_in_kernel_ = true;
  run.ranks[1].progress->phase = Phase::forward;
  EXPECT_THAT(look(run, 9), ElementsAre(1));
}

TEST_F(FrozenRanksTest, TheTimeOfADebuggerDoesNotCount) {
  auto run = waiting();
  EXPECT_THAT(look(run, 6), IsEmpty());
  is_traced_ = true;
  run.ranks[1].life = Life::stopped;
  EXPECT_THAT(look(run, 20), IsEmpty());
  is_traced_ = false;
  run.ranks[1].life = Life::alive;
  EXPECT_THAT(look(run, 7), IsEmpty());
  EXPECT_THAT(look(run, 1), ElementsAre(1));
}

TEST_F(FrozenRanksTest, ARankThatWaitsIsFrozenOnlyIfItIsStopped) {
  auto run = waiting();
  run.ranks[1].progress->phase = Phase::communication;  // as in a group with other hosts
  EXPECT_THAT(look(run, 20), IsEmpty());
  run.ranks[1].groups[0] = member(1, 2, {call(1, 9), call(2, 8)}, false);
  run.ranks[1].groups[0].failed = 2;
  run.ranks[1].progress->phase = Phase::other;
  EXPECT_THAT(look(run, 20), IsEmpty());
  run.ranks[0].life = Life::stopped;
  EXPECT_THAT(look(run, 9), ElementsAre(0));
}

// As with GPUs: the thread that trains waits for the device.
TEST_F(FrozenRanksTest, ACallThatAnotherRankHasNotEnteredIsAWait) {
  auto run = waiting();
  run.ranks[0].groups[0].awaited = 0;
  EXPECT_THAT(look(run, 20), ElementsAre(1));
  run.ranks[1].groups[0] = member(1, 2, {call(1, 9), call(2, 8)}, false);
  EXPECT_THAT(look(run, 9), ElementsAre(0, 1)) << "all have entered it";
}

TEST_F(FrozenRanksTest, ARankThatHasLeftTheRunIsNoRankUntilItComesBack) {
  auto run = waiting();
  EXPECT_THAT(look(run, 8), IsEmpty());
  run.ranks[1].progress->has_left = true;
  EXPECT_THAT(look(run, 20), IsEmpty());
  run.ranks[1].progress->has_left = false;
  EXPECT_THAT(look(run, 8), IsEmpty());
  EXPECT_THAT(look(run, 1), ElementsAre(1));
}

TEST_F(FrozenRanksTest, AMachineThatStoodStillHasNoFrozenRanks) {
  auto run = waiting();
  look(run, 2);
  run.taken_at += 1000 * kSecond;
  EXPECT_THAT(look(run, 5), IsEmpty());
  run.ranks[1].life = Life::dead;
  EXPECT_THAT(look(run, 20), IsEmpty());
}

TEST_F(FrozenRanksTest, AReplacementStartsAnew) {
  auto run = waiting();
  EXPECT_THAT(look(run, 8), IsEmpty());
  run.ranks[1].pid = run.ranks[1].thread = 300;
  EXPECT_THAT(look(run, 8), IsEmpty());
  EXPECT_THAT(look(run, 1), ElementsAre(1));
}

}  // namespace
}  // namespace lockstep::testing
