// SPDX-License-Identifier: BSD-3-Clause
// Runs that go on: slow and starved ranks, slow links and growing memory, beside healthy runs.
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "observe/step_faults.h"
#include "observe/verdict.h"
#include "runs.h"

namespace lockstep::testing {
namespace {

using observe::Cause;
using observe::judge;
using observe::Run;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kMillisecond = kSecond / 1000;

// What a rank spends in a step, in milliseconds.
struct Spent {
  int forward = 20;
  int communication = 5;
  int data = 1;
  int checkpoint = 0;
  int other = 1;
};

PhaseTimes times_of(const Spent& spent) {
  PhaseTimes times{};
  const auto set = [&](Phase phase, int value) {
    times.at(static_cast<std::size_t>(phase)) = value * kMillisecond;
  };
  set(Phase::forward, spent.forward);
  set(Phase::communication, spent.communication);
  set(Phase::data, spent.data);
  set(Phase::checkpoint, spent.checkpoint);
  set(Phase::other, spent.other);
  return times;
}

std::int64_t sum_of(const PhaseTimes& times) {
  std::int64_t sum = 0;
  for (const auto time : times) sum += time;
  return sum;
}

using Plan = std::function<Spent(int rank, int step)>;

// The end of the last step is 10 ms ago.
observe::Progress progress_of(int rank, int steps, const Plan& plan) {
  observe::Progress progress{
      .size = 4, .phase_since = kNow - 10 * kMillisecond, .steps = static_cast<std::uint64_t>(steps)};
  observe::Step sum;
  for (int step = 1; step <= steps; ++step) {
    const auto times = times_of(plan(rank, step));
    for (std::size_t i = 0; i < times.size(); ++i) sum.spent.at(i) += times.at(i);
    sum.number = static_cast<std::uint64_t>(step);
    sum.ended_at += sum_of(times);
    progress.last.push_back(sum);
  }
  for (auto& step : progress.last) step.ended_at += kNow - 10 * kMillisecond - sum.ended_at;
  if (progress.last.size() > 64) progress.last.erase(progress.last.begin(), progress.last.end() - 64);
  progress.spent = sum.spent;
  return progress;
}

// Ranks that have made so many steps with calls of one group.
Run training(int steps, const Plan& plan, int ranks = 4) {
  std::vector<std::vector<observe::Membership>> groups;
  for (int rank = 0; rank < ranks; ++rank)
    groups.push_back({member(rank, ranks, {call(1, 0.02), call(2, 0.011)}, false)});
  auto run = run_of(groups);
  for (auto& rank : run.ranks) {
    rank.groups[0].backend = "gloo";
    rank.progress = progress_of(rank.rank, steps, plan);
  }
  return run;
}

// Rank 2 is as given in its last steps, and the others wait for it.
Plan late(int first, const Spent& rank_2) {
  return [=](int rank, int step) -> Spent {
    if (step < first) return {};
    if (rank == 2) return rank_2;
    return {.communication = 5 + static_cast<int>(sum_of(times_of(rank_2)) / kMillisecond) - 27};
  };
}

TEST(RunningFaults, NamesASlowRank) {
  const auto verdict = judge(training(40, late(25, {.forward = 90})));
  EXPECT_EQ(verdict.cause, Cause::slow);
  EXPECT_THAT(verdict.ranks, ElementsAre(2));
  EXPECT_EQ(
      verdict.text,
      "rank 2 (pid 102) is slow: in the last 10 steps it computes for 91 ms a step, the others for 21 ms; most of "
      "the difference is in forward; they wait for it for 75 ms a step, last in all_reduce #2 of Float[4] at "
      "train.cpp:40 of group default. Compare the load and the clock of its cores with `lockstep doctor`, and the "
      "size of its batches.");
  EXPECT_THAT(judge(training(40, late(25, {.other = 90}))).text, HasSubstr("is in the program's own code;"));
}

TEST(RunningFaults, AThirdSlowStepIsNeeded) {
  EXPECT_EQ(judge(training(40, late(38, {.forward = 300}))).cause, Cause::slow);
  EXPECT_EQ(judge(training(40, late(39, {.forward = 300}))).cause, Cause::none);
}

std::string last_rank(const Run& run, double factor, std::size_t steps) {
  const auto verdict = observe::judge_last_rank(run, factor, steps);
  return verdict ? verdict->text : "";
}

TEST(RunningFaults, TheLastRankIsSoInEachStep) {
  const auto run = training(40, late(25, {.forward = 90}));
  EXPECT_THAT(last_rank(run, 4, 16),
              HasSubstr("rank 2 (pid 102) is slow: in the last 16 steps it computes for 91 ms"));
  EXPECT_EQ(observe::judge_last_rank(run, 4, 16)->rank, &run.ranks[2]);
  EXPECT_EQ(last_rank(run, 4, 17), "") << "it was as fast as the others";
  EXPECT_EQ(last_rank(run, 4.5, 16), "");
  EXPECT_EQ(last_rank(training(40, [](int, int) { return Spent{}; }), 1.01, 5), "");
  EXPECT_EQ(last_rank(training(40, late(1, {.forward = 90})), 4, 60), "") << "so many steps are not known";
  EXPECT_NE(last_rank(training(90, late(1, {.forward = 90})), 4, 60), "");
}

// Rank 1 has made 20 steps beside the last ones of the others.
Run with_replacement() {
  auto run = training(60, late(45, {.forward = 90}));
  auto& progress = *run.ranks[1].progress;
  progress.steps = 20;
  progress.last.erase(progress.last.begin(), progress.last.end() - 20);
  for (auto& step : progress.last) step.number -= 40;
  return run;
}

TEST(RunningFaults, StepsOfAReplacementAreThoseThatEndAtTheSameTime) {
  auto run = with_replacement();
  EXPECT_THAT(judge(run).text, HasSubstr("rank 2 (pid 102) is slow"));
  EXPECT_TRUE(observe::judge_last_rank(run, 4, 15));
  EXPECT_FALSE(observe::judge_last_rank(run, 4, 16)) << "the first steps of the replacement do not count";
  for (auto& step : run.ranks[1].progress->last) step.ended_at -= 40 * kMillisecond;
  EXPECT_EQ(judge(run).cause, Cause::none);
}

TEST(RunningFaults, NamesAllSlowRanks) {
  const auto verdict = judge(training(
      40,
      [](int rank, int) -> Spent {
        if (rank == 1) return {.forward = 90, .communication = 25};
        return rank == 3 ? Spent{.forward = 110} : Spent{.communication = 95};
      },
      5));
  EXPECT_THAT(verdict.ranks, ElementsAre(1, 3));
  EXPECT_THAT(verdict.text,
              AllOf(HasSubstr("rank 3 (pid 103) is slow"), HasSubstr("All that are late: ranks 1 and 3.")));
}

TEST(RunningFaults, NamesARankThatIsStarvedInEachStep) {
  auto run = training(40, late(25, {.data = 80}));
  run.ranks[2].progress->reading = "/data/x.jpg";
  run.ranks[2].progress->reading_since = kNow - 100 * kMillisecond;
  const auto verdict = judge(run);
  EXPECT_EQ(verdict.cause, Cause::starved);
  EXPECT_THAT(verdict.ranks, ElementsAre(2));
  EXPECT_THAT(verdict.text,
              AllOf(HasSubstr("it waits for batches for 80 ms a step, the others for 1 ms; they wait for "
                              "it for 84 ms a step, last in all_reduce #2"),
                    HasSubstr("; its worker reads /data/x.jpg, 0.1 s. More workers")));
}

TEST(RunningFaults, NamesAMissingRankThatWaitsForABatch) {
  auto run = training(40, [](int, int) { return Spent{}; });
  for (auto& rank : run.ranks) rank.groups[0] = member(rank.rank, 4, {call(1, 4.5), call(2, 4.2)}, true);
  run.ranks[3].groups[0] = member(3, 4, {call(1, 4.5)}, false);
  auto& progress = *run.ranks[3].progress;
  progress.phase = Phase::data;
  progress.phase_since = kNow - 4 * kSecond;
  progress.reading = "/data/x.jpg";
  progress.reading_since = kNow - 3 * kSecond;
  const auto verdict = judge(run);
  EXPECT_EQ(verdict.cause, Cause::starved);
  EXPECT_THAT(verdict.ranks, ElementsAre(3));
  EXPECT_THAT(verdict.text,
              HasSubstr("have waited 4.2 s. It waits for a batch, 4.0 s; its worker reads /data/x.jpg, "
                        "3.0 s; its last call was all_reduce #1"));
  progress.phase_since = kNow - kSecond / 10;
  EXPECT_EQ(judge(run).cause, Cause::missing) << "it has waited for the batch for a moment only";
  progress.phase = Phase::forward;
  EXPECT_THAT(judge(run).text, HasSubstr("It has been in forward for 0.1 s (its thread is running);"));
  progress.phase = Phase::checkpoint;
  EXPECT_EQ(judge(run).cause, Cause::none);
  for (const auto rank : {0, 1, 2})
    run.ranks[rank].groups[0] = member(rank, 4, {call(1, 90), call(2, 61)}, true);
  EXPECT_EQ(judge(run).cause, Cause::missing);
  EXPECT_THAT(judge(run).text, HasSubstr("It saves or loads a checkpoint, 0.1 s"));
}

TEST(RunningFaults, ARankThatIsLateInEachStepIsNotMissing) {
  auto run = training(40, late(31, {.forward = 2000}));
  for (const auto rank : {0, 1, 3})
    run.ranks[rank].groups[0] = member(rank, 4, {call(2, 1.9), call(3, 1.8)}, true);
  EXPECT_EQ(judge(run).cause, Cause::slow);
  run.taken_at += 10 * kSecond;
  EXPECT_EQ(judge(run).cause, Cause::missing);
}

// From `first` on all ranks communicate for `slow` ms.
Plan link(int first, int slow) {
  return [=](int rank, int step) -> Spent { return {.communication = (step < first ? 5 : slow) + rank}; };
}

TEST(RunningFaults, NamesASlowLink) {
  const auto verdict = judge(training(40, link(31, 100)));
  EXPECT_EQ(verdict.cause, Cause::slow_link);
  EXPECT_THAT(verdict.ranks, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(
      verdict.text,
      "Communication over gloo in group default is slow: ranks 0, 1, 2 and 3 wait for 100 ms a step in calls that "
      "all have entered, in the last 8 steps; before it was 5 ms. They compute as long as before. The last call is "
      "all_reduce #2 of Float[4] at train.cpp:40 of group default. All ranks of the job are on host node3.");
  EXPECT_EQ(judge(training(40, link(39, 400))).cause, Cause::none) << "two slow steps";
  EXPECT_EQ(judge(training(400, link(320, 100))).cause, Cause::slow_link)
      << "slow in all steps that are known";
  auto run = training(40, link(31, 100));
  for (auto& rank : run.ranks) rank.progress->size = 8;
  EXPECT_THAT(judge(run).text,
              HasSubstr("4 of the 8 ranks of the job are on host node3, which alone cannot tell"));
}

// One sample a second of rank 1, the last one now.
Run growing(std::vector<int> mebibytes, int steps = 200) {
  auto run = training(steps, [](int, int) { return Spent{}; });
  auto& memory = run.ranks[1].progress->memory;
  memory.push_back({kNow - 100 * kSecond, 500LL << 20});
  for (std::size_t i = 0; i < mebibytes.size(); ++i)
    memory.push_back({kNow - static_cast<std::int64_t>(mebibytes.size() - 1 - i) * kSecond,
                      static_cast<std::int64_t>(mebibytes[i]) << 20});
  return run;
}

TEST(RunningFaults, NamesARankWhoseMemoryGrows) {
  const auto verdict = judge(growing({600, 550, 650, 750, 850, 950}));
  EXPECT_EQ(verdict.cause, Cause::memory);
  EXPECT_THAT(verdict.ranks, ElementsAre(1));
  EXPECT_THAT(verdict.text,
              HasSubstr("The memory of rank 1 (pid 101) grows: from 550 MiB to 950 MiB in 4.0 s, 100 MiB a "
                        "second, in each of its last 5 samples. Tensors that are kept"));
}

TEST(RunningFaults, MemoryThatGrowsLessIsHealthy) {
  EXPECT_EQ(judge(growing({600, 700, 800, 900})).cause, Cause::none) << "too few samples";
  EXPECT_EQ(judge(growing({600, 610, 620, 630, 640, 650, 660})).cause, Cause::none) << "too little";
  EXPECT_EQ(judge(growing({8000, 8100, 8200, 8300, 8400})).cause, Cause::none) << "less than a quarter";
  EXPECT_EQ(judge(growing({600, 601, 1600, 1601, 1602, 1603})).cause, Cause::none) << "at once";
  EXPECT_EQ(judge(growing({600, 800, 1000, 1200, 1400, 1400})).cause, Cause::none) << "it has ended";
  EXPECT_EQ(judge(growing({600, 800, 1000, 1200, 1400}, 8)).cause, Cause::none) << "the first steps";
}

void expect_healthy(const Run& run) {
  const auto verdict = judge(run);
  EXPECT_EQ(verdict.cause, Cause::none) << verdict.text;
}

TEST(HealthyRuns, FirstStepsMayBeSlow) {
  expect_healthy(training(5, late(1, {.forward = 900})));
  expect_healthy(training(8, late(1, {.forward = 50})));  // few steps, of which three count
}

TEST(HealthyRuns, SmallDifferences) {
  expect_healthy(training(40, late(1, {.forward = 28})));
  expect_healthy(training(40, [](int rank, int step) -> Spent {
    return {.forward = 20 + 7 * ((rank + step) % 4), .communication = 30 - 7 * ((rank + step) % 4)};
  }));
  expect_healthy(training(64, [](int rank, int) -> Spent {  // less than 10 ms
    return rank == 2 ? Spent{.forward = 9, .communication = 1} : Spent{.forward = 2, .communication = 8};
  }));
}

TEST(HealthyRuns, EveryRankIsLateNowAndThen) {
  expect_healthy(training(60, [](int rank, int step) -> Spent {
    return step % 4 == rank ? Spent{.forward = 90} : Spent{.communication = 75};
  }));
  expect_healthy(training(60, [](int rank, int step) -> Spent {  // rank 2 writes a log in every third step
    const bool late = step % 3 == 0;
    return late && rank == 2 ? Spent{.other = 200} : Spent{.communication = late ? 205 : 5};
  }));
}

TEST(HealthyRuns, ALateRankForWhichNobodyWaits) {
  expect_healthy(training(40, [](int rank, int) -> Spent { return {.forward = rank == 2 ? 90 : 20}; }));
}

TEST(HealthyRuns, EvaluationsSavesAndEndsOfEpochs) {
  expect_healthy(training(40, [](int rank, int step) -> Spent {
    const bool end = step % 10 == 0;
    if (!end) return {};
    return rank == 0 ? Spent{.forward = 900, .data = 100, .checkpoint = 500} : Spent{.communication = 1500};
  }));
  expect_healthy(training(40, [](int rank, int) -> Spent {  // a checkpoint in each step
    return rank == 0 ? Spent{.checkpoint = 200} : Spent{.communication = 205};
  }));
  auto run = training(40, late(25, {.forward = 90}));  // and now an evaluation
  run.taken_at += 2 * kSecond;
  expect_healthy(run);
}

TEST(HealthyRuns, AllComputeMoreThanBefore) {
  expect_healthy(training(40, [](int, int step) -> Spent {
    return step < 31 ? Spent{} : Spent{.forward = 200, .communication = 50};
  }));
}

TEST(HealthyRuns, RanksThatDoNotMakeStepsTogether) {
  auto run = training(40, late(25, {.forward = 90}));
  run.ranks[1].progress = progress_of(1, 12, late(1, {.forward = 90}));  // another object
  expect_healthy(run);
  run.ranks[1].progress->last.clear();
  run.ranks[1].progress->steps = 0;
  expect_healthy(run);
  run.ranks[1].progress.reset();
  expect_healthy(run);
}

TEST(HealthyRuns, StagesOfAPipelineComputeForDifferentTimes) {
  auto run = training(40, late(1, {.forward = 90}));
  auto message = call(1, 0.012, "send");
  message.peer = 1;
  run.ranks[0].groups.push_back(member(0, 2, {message}, false, "stages"));
  expect_healthy(run);
}

TEST(HealthyRuns, AGroupWithoutCallsComparesNoRanks) {
  auto run = training(40, late(1, {.forward = 90}));
  for (auto& rank : run.ranks) rank.groups[0] = member(rank.rank, 4, {call(1, 50)}, false);
  expect_healthy(run);
}

}  // namespace
}  // namespace lockstep::testing
