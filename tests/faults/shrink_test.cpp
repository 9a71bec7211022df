// SPDX-License-Identifier: BSD-3-Clause
// `lockstep run --on-loss shrink`: the ranks that are left go on from their last commit. The results are those of a run
// that is started from that commit with so many ranks, and each sample of an epoch is seen once.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <random>
#include <regex>
#include <set>
#include <sstream>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/env.h"
#include "base/text.h"
#include "support/launcher_process.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr int kSamples = 240;
constexpr int kEpochs = 4;

using Words = std::vector<std::string>;

// The ranks of a run after a loss, as they tell when they begin to train.
struct RanksLeft {
  std::map<int, int> launched{};  // [rank] rank of the launcher
  int step = -1;
};

class Shrinking {
 public:
  Shrinking(int ranks, const std::string& mode, const std::string& kills,
            Words options = {"--on-loss", "shrink"}, std::chrono::seconds watchdog = 60s)
      : launcher_(arguments(ranks, options, folder_.path().string(), {mode, kills}),
                  {.env = {{"OMP_NUM_THREADS", "1"}}, .watchdog = watchdog}) {}

  LauncherProcess& launcher() { return launcher_; }

  void let_end() const { std::ofstream(folder_.path() / "enough").flush(); }

  // The training digests of the ranks that are left, which are equal.
  std::set<std::string> finish(int exit_code = 0) {
    let_end();
    EXPECT_EQ(launcher_.finish(), exit_code) << launcher_.err();
    launcher_.wait_for_no_family();
    return digests_in(launcher_.out());
  }

  // [number of ranks]: the last that began with so many.
  std::map<int, RanksLeft> worlds() const {
    std::map<int, RanksLeft> worlds;
    for (const auto& line : lines_of(launcher_.out())) {
      static const std::regex begins(
          "pid [0-9]+ of ([0-9]+) begins as ([0-9]+) of ([0-9]+) at step ([0-9]+)");
      std::smatch match;
      if (!std::regex_search(line, match, begins)) continue;
      const auto number = [&](int i) { return std::stoi(match[static_cast<std::size_t>(i)]); };
      const int launched = number(1), rank = number(2), size = number(3), step = number(4);
      worlds[size].launched[rank] = launched;
      worlds[size].step = step;
    }
    return worlds;
  }

  // The digests of a run that is started with the ranks that are left, from the commit that they returned to.
  std::set<std::string> started_anew() const {
    const auto all = worlds();
    const auto& [size, last] = *all.begin();
    std::vector<int> launched;
    for (const auto& [rank, of_launcher] : last.launched) launched.push_back(of_launcher);
    EXPECT_THAT(launched, SizeIs(size));
    LauncherProcess fresh(
        arguments(size, {}, folder_.path().string(),
                  {"from", std::to_string(last.step), fmt::format("{}", fmt::join(launched, ","))}),
        {.env = {{"OMP_NUM_THREADS", "1"}}, .watchdog = 60s});
    EXPECT_EQ(fresh.finish(), 0) << fresh.err();
    return digests_in(fresh.out());
  }

  // A step counts as it was committed: one that is done again is done by fewer ranks.
  void expect_each_sample_once() const {
    std::map<std::pair<int, int>, std::map<int, std::vector<int>>> steps;  // [epoch, step][ranks]
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
      const auto parts = split(entry.path().filename().string(), '.');
      if (parts.front() != "seen") continue;
      auto& samples = steps[{std::stoi(parts[1]), std::stoi(parts[2])}][std::stoi(parts[3])];
      std::ifstream file(entry.path());
      for (int sample = 0; file >> sample;) samples.push_back(sample);
    }
    std::map<int, std::vector<int>> epochs;
    std::map<int, int> ranks_of_epoch;
    for (const auto& [place, worlds] : steps) {
      const auto& [ranks, samples] = *worlds.begin();
      auto& all = epochs[place.first];
      all.insert(all.end(), samples.begin(), samples.end());
      ranks_of_epoch[place.first] = ranks;
    }
    EXPECT_THAT(epochs, SizeIs(kEpochs));
    for (const auto& [epoch, samples] : epochs) {
      EXPECT_THAT(std::set(samples.begin(), samples.end()), SizeIs(kSamples)) << "epoch " << epoch;
      // What is left may have to be padded so that each rank has as many.
      EXPECT_LT(static_cast<int>(samples.size()), kSamples + ranks_of_epoch[epoch]) << "epoch " << epoch;
    }
  }

 private:
  static std::set<std::string> digests_in(const std::string& out) {
    std::set<std::string> digests;
    for (const auto& line : lines_of(out)) {
      const auto at = line.find("trained ");
      if (at != std::string::npos) digests.insert(line.substr(line.find(": ", at) + 2));
    }
    return digests;
  }

  static Words arguments(int ranks, const Words& options, const std::string& folder, const Words& rest) {
    Words words{"run", "--nproc-per-node", std::to_string(ranks)};
    words.insert(words.end(), options.begin(), options.end());
    words.insert(words.end(), {"--", TRAINING_RANK_PROGRAM, "shrinking", folder});
    words.insert(words.end(), rest.begin(), rest.end());
    return words;
  }

  TempFolder folder_;
  LauncherProcess launcher_;
};

void expect_results_of_fresh_start(Shrinking& run, int left) {
  const auto digests = run.finish();
  EXPECT_THAT(digests, SizeIs(1)) << run.launcher().out();
  EXPECT_EQ(run.worlds().begin()->first, left);
  run.expect_each_sample_once();
  EXPECT_EQ(digests, run.started_anew());
  EXPECT_THAT(run.launcher().err(), Not(HasSubstr("stopping the other ranks")));
}

TEST(Shrink, TheOthersGoOnWithoutALostRank) {
  Shrinking run(3, "train", "1@20");
  expect_results_of_fresh_start(run, 2);
  EXPECT_THAT(run.launcher().err(),
              AllOf(HasSubstr("rank 1 was killed by SIGKILL; the run continues with 2 ranks\n"),
                    ContainsRegex("2 of 3 ranks are left and continued from commit (19|20): [0-9]+ ms")));
}

TEST(Shrink, RankZeroIsAsTheOthers) {
  Shrinking run(3, "sampler", "0@20");
  expect_results_of_fresh_start(run, 2);
}

TEST(Shrink, OneRankAfterTheOtherIsLost) {
  Shrinking run(3, "train", "0@10,2@30");
  expect_results_of_fresh_start(run, 1);
}

TEST(Shrink, ARankIsLostWhileTheOthersRecover) {
  Shrinking run(4, "train", "1@10,2@load");
  expect_results_of_fresh_start(run, 2);
}

// LOCKSTEP_FAULT_SEED shows the same order of kills again.
TEST(Shrink, RanksAreKilledAtRandomMoments) {
  const auto seed = Env().get_int("LOCKSTEP_FAULT_SEED").value_or(std::random_device()());
  const auto rounds = Env().get_int("LOCKSTEP_FAULT_ROUNDS").value_or(2);
  std::cout << "LOCKSTEP_FAULT_SEED=" << seed << std::endl;
  std::mt19937 random(static_cast<unsigned>(seed));
  for (std::int64_t round = 0; round < rounds; ++round) {
    Shrinking run(4, "train", "", {"--on-loss", "shrink", "--min-ranks", "2"});
    run.launcher().wait_for(" begins as ", 4);
    std::vector<int> ranks{0, 1, 2, 3};
    std::ranges::shuffle(ranks, random);
    for (int i = 0; i < 2; ++i) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 300'000));
      ::kill(run.launcher().rank_pid(ranks[static_cast<std::size_t>(i)]), SIGKILL);
    }
    run.launcher().wait_for(" of 2 at step ", 2);
    expect_results_of_fresh_start(run, 2);
  }
}

TEST(Shrink, TrainerSharesOutTheRestOfAnEpoch) {
  Shrinking run(3, "trainer", "1@21");
  EXPECT_THAT(run.finish(), SizeIs(1)) << run.launcher().out();
  run.expect_each_sample_once();
  EXPECT_THAT(run.launcher().out(),
              AllOf(HasSubstr("epoch 0 validated by 3 ranks"), HasSubstr("epoch 1 validated by 2 ranks"),
                    HasSubstr("epoch 3 validated by 2 ranks")));
}

TEST(Shrink, EndsWithFewerRanksThanTheLeast) {
  Shrinking run(3, "train", "1@10,2@20", {"--on-loss", "shrink", "--min-ranks", "2"});
  EXPECT_THAT(run.finish(128 + SIGKILL), IsEmpty());
  EXPECT_THAT(
      run.launcher().err(),
      AllOf(HasSubstr("rank 1 was killed by SIGKILL; the run continues with 2 ranks"),
            HasSubstr("rank 2 failed first: it was killed by SIGKILL, which leaves 1 rank, fewer than "
                      "--min-ranks 2; pid")));
}

// With all ranks from the first step, which then kill themselves again: more are left than the least.
TEST(Shrink, StartsAllRanksAgainWhileRestartsAreLeft) {
  Shrinking run(2, "train", "1@10", {"--on-loss", "shrink", "--min-ranks", "2", "--max-restarts", "1"});
  run.finish(128 + SIGKILL);
  EXPECT_THAT(
      run.launcher().err(),
      AllOf(HasSubstr("which leaves 1 rank, fewer than --min-ranks 2; restart 1 of 1"),
            ContainsRegex("rank 1 failed first: [^\n]*fewer than --min-ranks 2; pid [^\n]*after 1 restart")));
}

class ShrinkMode : public ::testing::TestWithParam<const char*> {};

TEST_P(ShrinkMode, ARankThatFailsByItselfIsLost) {
  Shrinking run(3, GetParam(), "");
  expect_results_of_fresh_start(run, 2);
}
INSTANTIATE_TEST_SUITE_P(RankOne, ShrinkMode, ::testing::Values("exits", "throws"));

// The others do not leave it alone.
TEST(Shrink, AFrozenRankEndsTheRun) {
  Shrinking run(3, "frozen", "");
  run.finish(1);
  EXPECT_THAT(run.launcher().err(), AllOf(HasSubstr("failed first: it exited with code 1; pid"),
                                          Not(HasSubstr("the run continues with"))));
}

TEST(Shrink, AFrozenRankIsLostAtItsProgressTimeout) {
  Shrinking run(3, "stopped", "", {"--on-loss", "shrink", "--progress-timeout", "2"});
  expect_results_of_fresh_start(run, 2);
  EXPECT_THAT(run.launcher().err(), HasSubstr("no progress for"));
}

TEST(Shrink, AnErrorOfAllRanksEndsTheRun) {
  Shrinking run(3, "nan", "");
  run.finish(1);
  EXPECT_THAT(run.launcher().err(),
              AllOf(HasSubstr("the loss is not finite"), HasSubstr("no rank is replaced"),
                    Not(HasSubstr("the run continues with"))));
}

TEST(Shrink, RefusesAtTheStartWhatFewerRanksCannotHave) {
  for (
      const auto& [mode, text] : {
          std::pair{
              "zero",
              "--on-loss shrink does not support 'zero': a ZeroRedundancyOptimizer distributes its states"},
          std::pair{"sharded",
                    "--on-loss shrink does not support 'shards': fully_shard() distributes its parameters"},
          std::pair{"outside", "--on-loss shrink does not support modules of fully_shard()"},
          std::pair{"iterable", "does not support 'stream': loader: its dataset is iterable"},
          std::pair{"random", "does not support 'loader': loader: its sampler is no DistributedSampler"},
          std::pair{
              "other",
              "does not support 'loader': loader: its DistributedSampler has num_replicas or rank of the program"},
          std::pair{"gradients", "commit: 'gradients' would have gradients"},
      }) {
    Shrinking run(2, mode, "");
    EXPECT_THAT(run.finish(1), IsEmpty());
    EXPECT_THAT(run.launcher().err(), HasSubstr(text)) << mode;
  }
}

}  // namespace
}  // namespace lockstep::testing
