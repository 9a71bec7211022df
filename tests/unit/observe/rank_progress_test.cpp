// SPDX-License-Identifier: BSD-3-Clause
#include "base/rank_progress.h"

#include <csignal>
#include <numeric>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "observe/find_runs.h"

namespace lockstep::testing {
namespace {

using observe::Progress;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::ThrowsMessage;

// A process that is rank 3 of 8, has done `work`, and pauses.
class PausedRank {
 public:
  template <class Work>
  explicit PausedRank(const Work& work) {
    int done[2];
    EXPECT_EQ(::pipe(done), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::alarm(60);
      publish_progress(3, 8, false);
      work();
      (void)!::write(done[1], "x", 1);
      while (true) ::pause();
    }
    ::close(done[1]);  // so that the end of the process ends the read
    char byte = 0;
    EXPECT_EQ(::read(done[0], &byte, 1), 1);
    ::close(done[0]);
  }
  ~PausedRank() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  PausedRank(const PausedRank&) = delete;
  PausedRank& operator=(const PausedRank&) = delete;

  observe::Rank seen() const {
    auto run = observe::find_run(std::to_string(pid_)).read();
    EXPECT_EQ(run.ranks.at(0).rank, 3);
    EXPECT_EQ(run.ranks.at(0).pid, pid_);
    return std::move(run.ranks.at(0));
  }

 private:
  pid_t pid_ = 0;
};

// What other processes see of a rank that has done `work`.
template <class Work>
Progress seen_after(const Work& work) {
  return PausedRank(work).seen().progress.value();
}

std::int64_t total(const PhaseTimes& times) {
  return std::accumulate(times.begin(), times.end(), std::int64_t{0});
}

TEST(RankProgress, TimesOfPhasesAddUp) {
  const auto seen = seen_after([] {
    const auto& progress = *current_progress();
    enter_phase(*current_progress(), Phase::data);
    { const PhaseScope communication(Phase::communication); }
    if (progress.phase != Phase::data) ::_exit(1);
    enter_phase(*current_progress(), Phase::backward);
  });
  EXPECT_EQ(seen.size, 8);
  EXPECT_EQ(seen.phase, Phase::backward);
  EXPECT_EQ(total(seen.spent), seen.phase_since - seen.began_at);
  for (const auto phase : {Phase::other, Phase::data, Phase::communication})
    EXPECT_GT(seen.spent.at(static_cast<std::size_t>(phase)), 0);
  EXPECT_EQ(seen.spent.at(static_cast<std::size_t>(Phase::backward)), 0);
}

TEST(RankProgress, OnlyTheThreadThatTrainsHasPhases) {
  const auto seen = seen_after([] { std::thread([] { new PhaseScope(Phase::checkpoint); }).join(); });
  EXPECT_EQ(seen.phase, Phase::other);
}

TEST(RankProgress, KeepsTheLastSteps) {
  const auto seen = seen_after([] {
    auto& progress = *current_progress();
    for (std::uint64_t step = 1; step <= 100; ++step) {
      progress.samples += 32;
      count_step(progress, step);
      count_step(progress, step);  // of another object
    }
  });
  EXPECT_EQ(seen.steps, 100U);
  ASSERT_EQ(seen.last.size(), 64U);
  EXPECT_EQ(seen.last.front().number, 37U);
  EXPECT_EQ(seen.last.back().number, 100U);
  EXPECT_EQ(seen.last.back().samples, 3200U);
  EXPECT_EQ(total(seen.last.back().spent), seen.last.back().ended_at - seen.began_at);
  ASSERT_FALSE(seen.memory.empty());
  EXPECT_LT(seen.memory.size(), 50U);  // one a second
  EXPECT_GT(seen.memory.front().resident, 1 << 20);
}

TEST(RankProgress, CountsTheStepsOfObjectsThatFollowEachOther) {
  const auto seen = seen_after([] {
    auto& progress = *current_progress();
    const auto first = counted_steps();
    for (std::uint64_t step = 1; step <= 10; ++step) count_step(progress, first + step);
    const auto second = counted_steps();
    for (std::uint64_t step = 1; step <= 5; ++step) count_step(progress, second + step);
  });
  EXPECT_EQ(seen.steps, 15U);
  EXPECT_EQ(seen.last.size(), 15U);
}

TEST(RankProgress, AddsUpWhatObjectsHaveGathered) {
  const auto seen = seen_after([] {
    GatheredBytes freed;
    static GatheredBytes held;
    freed.set(100);
    held.set(30);
    held.set(40);
  });
  EXPECT_EQ(seen.gathered, 40);
}

TEST(RankProgress, TwoThreadsWithPhasesDoNotStopReaders) {
  const auto seen = seen_after([] {
    auto& progress = *current_progress();
    progress.changes = 7;  // as two writers at one time may leave it
    enter_phase(progress, Phase::forward);
    if (progress.changes % 2 == 1) ::_exit(1);
  });
  EXPECT_EQ(seen.phase, Phase::forward);
  EXPECT_GT(seen.phase_since, 0);
}

TEST(RankProgress, KeepsTheLastValueOfEachNumber) {
  const auto seen = seen_after([] {
    report_number("loss", 2);
    report_number("lr", 0.5);
    report_number("loss", 1);
    report_number(std::string(100, 'n'), 3);
    for (int i = 3; i < 32; ++i) {
      if (!report_number("name " + std::to_string(i), i)) ::_exit(1);
    }
    if (report_number("one too many", 0) || !report_number("lr", 0.25)) ::_exit(1);
  });
  ASSERT_EQ(seen.numbers.size(), 32U);
  EXPECT_THAT(seen.numbers[0], Pair("loss", 1));
  EXPECT_THAT(seen.numbers[1], Pair("lr", 0.25));
  EXPECT_THAT(seen.numbers[2], Pair(std::string(kNameBytes, 'n'), 3));
}

TEST(RankProgress, ShowsTheFileThatIsReadForTheLongest) {
  const auto seen = seen_after([] {
    { const ReadingScope done("/data/done.jpg"); }
    std::thread([] { new ReadingScope("/data/" + std::string(300, 'x') + "/first.jpg"); }).join();
    new ReadingScope("/data/second.jpg");
  });
  EXPECT_TRUE(seen.reading.ends_with("x/first.jpg")) << seen.reading;
  EXPECT_EQ(seen.reading.size(), 239U);
  EXPECT_GT(seen.reading_since, 0);
}

TEST(RankProgress, ShowsThatTheRankHasLeftUntilItIsOneAgain) {
  EXPECT_FALSE(seen_after([] {}).has_left);
  EXPECT_TRUE(seen_after([] { end_progress(false); }).has_left);
  EXPECT_FALSE(seen_after([] {
                 end_progress(false);
                 publish_progress(3, 8, false);
               }).has_left);
}

TEST(RankProgress, AForkedProcessIsNoRankUntilItBecomesOne) {
  publish_progress(0, 1, false);
  report_number("loss", 5);
  const auto seen = seen_after([] {});
  EXPECT_TRUE(seen.numbers.empty());
  EXPECT_EQ(current_progress()->rank, 0);
}

TEST(RankProgress, OfAnotherVersionIsRefused) {
  const PausedRank rank([] { current_progress()->format = 99; });
  EXPECT_THAT([&] { (void)rank.seen(); }, ThrowsMessage<Error>(HasSubstr("in rank progress format 99")));
}

}  // namespace
}  // namespace lockstep::testing
