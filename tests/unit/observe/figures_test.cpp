// SPDX-License-Identifier: BSD-3-Clause
#include "observe/figures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "runs.h"

namespace lockstep::testing {
namespace {

using observe::figures_of;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A rank that makes a step of eight samples each half a second, the last one at kNow: three quarters of it forward.
observe::Progress steady_progress() {
  observe::Progress progress{
      .size = 2, .began_at = 0, .phase = Phase::forward, .phase_since = kNow, .steps = 20};
  for (std::uint64_t step = 11; step <= 20; ++step) {
    PhaseTimes spent{};
    const auto time = static_cast<std::int64_t>(step) * kSecond / 2;
    spent[static_cast<std::size_t>(Phase::forward)] = 3 * time / 4;
    spent[static_cast<std::size_t>(Phase::data)] = time / 4;
    progress.last.push_back({.number = step,
                             .ended_at = kNow - static_cast<std::int64_t>(20 - step) * kSecond / 2,
                             .spent = spent,
                             .samples = 8 * step});
  }
  return progress;
}

observe::Run steady_run() {
  auto run = run_of({{member(0, 2, {call(1, 5), call(2, 0.5)}, true)}, {member(1, 2, {call(1, 4)}, false)}});
  run.ranks[0].progress = steady_progress();
  return run;
}

TEST(Figures, StepsSamplesAndPhasesAreThoseOfTheLastSteps) {
  const auto figures = figures_of(steady_run());
  ASSERT_THAT(figures.ranks, SizeIs(2));
  EXPECT_DOUBLE_EQ(figures.ranks[0].steps_per_second, 2);
  EXPECT_DOUBLE_EQ(figures.ranks[0].samples_per_second, 16);
  EXPECT_THAT(figures.ranks[0].shares, ElementsAre(0, 0.75, 0, 0, 0.25, 0, 0));
  EXPECT_EQ(figures.ranks[1].steps_per_second, 0) << "a rank without progress";
  EXPECT_DOUBLE_EQ(figures.steps_per_second, 2);
  EXPECT_DOUBLE_EQ(figures.samples_per_second, 16);
}

TEST(Figures, ARankThatMakesNoMoreStepsSlowsDown) {
  auto run = steady_run();
  run.taken_at = kNow + kSecond;
  EXPECT_DOUBLE_EQ(figures_of(run).ranks[0].steps_per_second, 2) << "twice a step";
  run.taken_at = kNow + 45 * kSecond / 10;
  EXPECT_DOUBLE_EQ(figures_of(run).ranks[0].steps_per_second, 1);
}

TEST(Figures, WithoutStepsPhasesAreThoseSinceTheRankBegan) {
  auto run = steady_run();
  auto& progress = *run.ranks[0].progress;
  progress.last.resize(1);
  progress.phase = Phase::data;
  progress.phase_since = kNow - 3 * kSecond;
  progress.spent[static_cast<std::size_t>(Phase::other)] = kSecond;
  const auto figures = figures_of(run);
  EXPECT_THAT(figures.ranks[0].shares, ElementsAre(0.25, 0, 0, 0, 0.75, 0, 0));
  EXPECT_EQ(figures.ranks[0].phase_age, 3 * kSecond);
  EXPECT_EQ(figures.ranks[0].steps_per_second, 0);
}

TEST(Figures, TheCallUnderWayHasItsAgeAndBytes) {
  auto run = steady_run();
  run.ranks[0].groups[0].backend = "shm";
  const auto figures = figures_of(run);
  ASSERT_TRUE(figures.ranks[0].call.has_value());
  const auto& under_way = *figures.ranks[0].call;
  EXPECT_EQ(under_way.call.sequence, 2U);
  EXPECT_EQ(under_way.backend, "shm");
  EXPECT_EQ(under_way.age, kSecond / 2);
  EXPECT_EQ(under_way.bytes, 16U);
  EXPECT_FALSE(figures.ranks[1].call.has_value());
  run.ranks[0].groups[0].calls.back().dims = 6;
  EXPECT_EQ(figures_of(run).ranks[0].call->bytes, 0U) << "a shape that is not known whole";
}

TEST(Figures, TheLastArrivalIsInTheLastCollectiveThatAllRanksEntered) {
  auto run = steady_run();
  run.ranks[0].groups.push_back(member(0, 1, {call(9, 1)}, false, "alone"));
  const auto figures = figures_of(run);
  ASSERT_THAT(figures.arrivals, SizeIs(1));
  EXPECT_EQ(figures.arrivals[0].group, "default");
  EXPECT_EQ(figures.arrivals[0].call.sequence, 1U);
  EXPECT_EQ(figures.arrivals[0].rank, 1);
  EXPECT_EQ(figures.arrivals[0].behind, kSecond);
  auto message = run;
  message.ranks[1].groups[0].calls[0].name = "send";
  EXPECT_THAT(figures_of(message).arrivals, IsEmpty());
}

TEST(Figures, TrafficIsTheDifferenceOfTwoReadings) {
  auto earlier = steady_run();
  for (auto& rank : earlier.ranks) rank.groups[0].backend = "shm";
  auto run = earlier;
  run.taken_at += 2 * kSecond;
  run.ranks[0].groups[0].bytes = 3000;
  run.ranks[1].groups[0].bytes = 1000;
  EXPECT_THAT(figures_of(run).traffic, IsEmpty());
  const auto figures = figures_of(run, &earlier);
  ASSERT_THAT(figures.traffic, SizeIs(1));
  EXPECT_DOUBLE_EQ(figures.traffic[0].bytes_per_second, 2000);
  EXPECT_DOUBLE_EQ(figures.ranks[0].traffic[0].bytes_per_second, 1500);
  run.ranks[0].pid = run.ranks[0].thread = 200;
  EXPECT_THAT(figures_of(run, &earlier).ranks[0].traffic, IsEmpty()) << "another process has its number";
}

TEST(Figures, JsonNamesThem) {
  const auto json = observe::to_json(figures_of(steady_run(), nullptr, {{100, {4096, 1024}}}));
  EXPECT_EQ(json["ranks"][0]["resident"], 4096);
  EXPECT_EQ(json["ranks"][0]["pss"], 1024);
  EXPECT_EQ(json["ranks"][0]["shares"]["forward"], 0.75);
  EXPECT_EQ(json["ranks"][0]["call"]["line"], 40);
  EXPECT_TRUE(json["ranks"][1]["call"].is_null());
  EXPECT_EQ(json["last_arrivals"][0]["rank"], 1);
}

}  // namespace
}  // namespace lockstep::testing
