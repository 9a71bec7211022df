// SPDX-License-Identifier: BSD-3-Clause
// Ranks are killed at random moments and replaced; the run continues, and ends with the bits of one without kills.
// LOCKSTEP_FAULT_ROUNDS=200 for as many kills, LOCKSTEP_FAULT_SEED to see the same order of kills again.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <random>
#include <set>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/env.h"
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

constexpr int kRanks = 4;

std::string name_of(pid_t pid) {
  std::string name;
  std::getline(std::ifstream(fmt::format("/proc/{}/comm", pid)), name);
  return name;
}

class ElasticTraining {
 public:
  explicit ElasticTraining(const std::vector<std::string>& options, std::chrono::seconds watchdog = 120s,
                           const std::string& mode = "", int ranks = kRanks)
      : launcher_(arguments(ranks, options, folder_.path().string(), mode),
                  {.env = {{"OMP_NUM_THREADS", "1"}}, .watchdog = watchdog}) {}

  LauncherProcess& launcher() { return launcher_; }
  const std::filesystem::path& folder() const { return folder_.path(); }

  // Until all ranks train.
  void wait() { launcher_.wait_for("pid ", kRanks); }

  // Ranks, spares and what begins to be one.
  std::vector<pid_t> processes() const {
    auto family = launcher_.family();
    std::erase_if(family, [](pid_t pid) { return name_of(pid) != "elastic_rank"; });
    return family;
  }

  // What the ranks say of their weights, which differ in the statistics of the last batch.
  std::set<std::string> finish(int exit_code = 0) {
    std::ofstream(folder_.path() / "enough").flush();
    EXPECT_EQ(launcher_.finish(), exit_code) << launcher_.err();
    std::set<std::string> digests;
    for (const auto& line : lines_of(launcher_.out())) {
      const auto at = line.find("trained ");
      if (at != std::string::npos) digests.insert(line.substr(at));
    }
    launcher_.wait_for_no_family();
    return digests;
  }

 private:
  static std::vector<std::string> arguments(int ranks, std::vector<std::string> options,
                                            const std::string& folder, const std::string& mode) {
    std::vector<std::string> words{"run", "--nproc-per-node", std::to_string(ranks)};
    words.insert(words.end(), options.begin(), options.end());
    const auto* const steps = mode.starts_with("trainer") ? "200" : mode.starts_with("fsdp") ? "400" : "800";
    for (const auto& word :
         {std::string("--"), std::string(ELASTIC_RANK_PROGRAM), std::string(steps), folder, mode})
      words.push_back(word);
    return words;
  }

  TempFolder folder_;
  LauncherProcess launcher_;
};

// The weights of a run without kills. Those of ZeroRedundancyOptimizer are those of its base.
const std::set<std::string>& undisturbed(const std::string& mode = "") {
  static std::map<std::string, std::set<std::string>> weights;
  const auto kept = mode == "zero" ? std::string() : mode;
  auto& found = weights[kept];
  if (found.empty()) found = ElasticTraining({}, 120s, kept).finish();
  return found;
}

// That no restart of all ranks has made the weights equal.
void expect_survivors(ElasticTraining& training) {
  EXPECT_THAT(training.launcher().err(), HasSubstr("its replacement runs"));
  EXPECT_THAT(training.launcher().err(), HasSubstr("all 4 ranks continued from commit "));
  EXPECT_THAT(training.launcher().err(), Not(HasSubstr("stopping the other ranks")));
}

// `options` besides those of every run with replacements. `pause`: the longest one between two kills.
void kill_and_compare(std::vector<std::string> options, int kills, std::chrono::milliseconds pause,
                      const std::string& mode = "") {
  ASSERT_THAT(undisturbed(mode), SizeIs(kRanks));
  kills = static_cast<int>(Env().get_int("LOCKSTEP_FAULT_ROUNDS").value_or(kills));
  const auto seed = Env().get_int("LOCKSTEP_FAULT_SEED").value_or(std::random_device()());
  std::cout << "LOCKSTEP_FAULT_SEED=" << seed << std::endl;
  std::mt19937 random(static_cast<unsigned>(seed));
  for (const auto* word : {"--on-loss", "replace", "--max-restarts", "10000"}) options.emplace_back(word);
  ElasticTraining training(options, std::chrono::seconds(120 + 5 * kills), mode);
  training.wait();
  for (int i = 0; i < kills; ++i) {
    std::this_thread::sleep_for(
        std::chrono::microseconds(random() % static_cast<unsigned>(1000 * pause.count())));
    const auto alive = training.processes();
    ASSERT_THAT(alive, Not(IsEmpty())) << training.launcher().err();
    ::kill(alive[random() % alive.size()], SIGKILL);
  }
  EXPECT_EQ(training.finish(), undisturbed(mode)) << training.launcher().err();
  expect_survivors(training);
}

TEST(Elastic, KilledRanksAreReplacedAndTheBitsStay) { kill_and_compare({}, 3, 1500ms); }

TEST(Elastic, SparesTakeThePlaceOfKilledRanks) { kill_and_compare({"--spares", "2"}, 3, 1000ms); }

TEST(Elastic, RanksAreKilledWhileOthersComeBack) { kill_and_compare({}, 5, 200ms); }

// Besides, its rates, which follow from the validations.
TEST(Elastic, TrainerGoesOnInTheMiddleOfAnEpoch) {
  kill_and_compare({"--spares", "1"}, 4, 1500ms, "trainer");
}

TEST(Elastic, TrainerReturnsToItsLastStep) {
  ElasticTraining training({"--on-loss", "replace", "--max-restarts", "1"}, 120s, "trainer");
  training.launcher().wait_for("waits");
  ::kill(training.processes().front(), SIGKILL);
  EXPECT_EQ(training.finish(), undisturbed("trainer")) << training.launcher().err();
  EXPECT_THAT(training.launcher().out(), HasSubstr("at step 199"));
}

TEST(Elastic, OptimizerStatesOfKilledRanksAreReplaced) {
  kill_and_compare({"--spares", "1"}, 2, 1000ms, "zero");
}

TEST(Elastic, TrainerGoesOnWithShards) { kill_and_compare({"--spares", "1"}, 2, 1500ms, "trainer-fsdp"); }

// Each rank has a part of the weights, which only its own commits have.
TEST(Elastic, ShardsOfKilledRanksAreReplaced) { kill_and_compare({"--spares", "1"}, 3, 700ms, "fsdp"); }

TEST(Elastic, AllRanksAtOnceReturnToTheirLastCommit) {
  ElasticTraining training({"--on-loss", "replace", "--max-restarts", "4"});
  training.launcher().wait_for("waits");
  for (const pid_t pid : training.processes()) ::kill(pid, SIGKILL);
  EXPECT_EQ(training.finish(), undisturbed()) << training.launcher().err();
  expect_survivors(training);
  // Not from the first step, which would give the same weights.
  EXPECT_THAT(training.launcher().out(), HasSubstr("of 3 at step 799"));
}

const std::vector<std::string> kOnce{"--on-loss", "replace", "--max-restarts", "1"};

// Rank 1 is lost before or after elastic::run(), so that all ranks start again, or within.
class ElasticMode : public ::testing::TestWithParam<const char*> {};

TEST_P(ElasticMode, HasTheSameWeights) {
  ElasticTraining training(kOnce, 120s, GetParam());
  EXPECT_EQ(training.finish(), undisturbed()) << training.launcher().err();
  const std::string_view mode = GetParam();
  const bool is_replaced = mode == "throws" || mode == "leaves";
  EXPECT_THAT(training.launcher().err(),
              HasSubstr(is_replaced ? "its replacement runs (1 of 1" : "restart 1 of 1;"));
}
INSTANTIATE_TEST_SUITE_P(RankOne, ElasticMode, ::testing::Values("before", "throws", "leaves", "after"));

std::vector<std::string> with_limit(int seconds) {
  return {
      "-v", "--on-loss", "replace", "--max-restarts", "10", "--progress-timeout", std::to_string(seconds)};
}

// One in a loop, one asleep, one stopped.
TEST(Elastic, FrozenRanksAreNamedKilledAndReplaced) {
  ElasticTraining training(with_limit(2), 120s, "hangs");
  auto& launcher = training.launcher();
  launcher.wait_for("waits");
  const pid_t stopped = launcher.rank_pid(3);
  ::kill(stopped, SIGSTOP);
  launcher.wait_for("of 3 at step 799");
  EXPECT_EQ(training.finish(), undisturbed()) << launcher.err();
  expect_survivors(training);
  const auto waits = "[^\n]*has not entered [^\n]*for which ranks? [^\n]* waited[^\n]*";
  const auto killed =
      "It has made no progress for [0-9.]+ s and is killed \\(--progress-timeout 2\\); its stack:\n";
  EXPECT_THAT(
      launcher.err(),
      AllOf(
          ContainsRegex(fmt::format("warning: rank 1 {}{}[^\n]*\n[^\n]*loop_without_end", waits, killed)),
          ContainsRegex(fmt::format("warning: rank 2 {}{}", waits, killed)),
          ContainsRegex(
              fmt::format("warning: rank 3 .pid {}.[^\n]*is stopped by a signal[^\n]*{}", stopped, killed)),
          HasSubstr("sleep_without_end"),
          ContainsRegex("lockstep. time limits of the launcher:\n  from SIGTERM to SIGKILL  [^:]*"
                        "\n  a rank without progress  +2 s  +--progress-timeout"),
          ContainsRegex("time limits of the ranks:[^\n]*\n[^\n]*  a collective or message, [^\n]*  [0-9]+ "),
          ContainsRegex("rank 3 was killed by SIGKILL from the launcher .no progress for [0-9.]+ s; "
                        "--progress-timeout 2.; its replacement runs .3 of 10 restarts.")));
}

// Rank 2 waits for reductions when rank 1 is lost, and freezes once it has recovered.
TEST(Elastic, ARankIsKilledWhileShardsAreReduced) {
  ElasticTraining training(with_limit(2), 120s, "fsdp-backward");
  EXPECT_EQ(training.finish(), undisturbed("fsdp")) << training.launcher().err();
  expect_survivors(training);
  EXPECT_THAT(
      training.launcher().err(),
      AllOf(
          HasSubstr("continued from commit 5"),
          ContainsRegex(
              "warning: rank 2 [^\n]*made no progress for [0-9.]+ s and is killed [^\n]*:\n[^\n]*\n[^\n]*loop_without_end")));
}

// The limit passes twice.
TEST(Elastic, RanksThatWaitOrReportProgressAreNotFrozen) {
  ElasticTraining training(with_limit(2), 120s, "works");
  training.launcher().wait_for("works");
  std::this_thread::sleep_for(5s);
  std::ofstream(training.folder() / "rested").flush();
  EXPECT_EQ(training.finish(), undisturbed());
  EXPECT_THAT(training.launcher().err(), Not(HasSubstr("no progress")));
}

TEST(Elastic, ASlowRankIsNamedAndReplaced) {
  ElasticTraining training({"--on-loss", "replace", "--max-restarts", "10", "--slow-factor", "3",
                            "--slow-steps", "10", "--on-slow", "replace"},
                           120s, "drags");
  EXPECT_EQ(training.finish(), undisturbed()) << training.launcher().err();
  expect_survivors(training);
  EXPECT_THAT(
      training.launcher().err(),
      AllOf(
          ContainsRegex("warning: rank 1 .pid [0-9]*. is slow: in the last 10 steps it computes for"),
          HasSubstr("It is killed and replaced (--on-slow replace)."),
          ContainsRegex(
              "rank 1 was killed by SIGKILL from the launcher .*; its replacement runs .1 of 10 restarts.")));
}

TEST(Elastic, ARankThatComputesWronglyIsReplaced) {
  ElasticTraining training(kOnce, 120s, "wrong");
  EXPECT_EQ(training.finish(), undisturbed()) << training.launcher().err();
  expect_survivors(training);
  EXPECT_THAT(
      training.launcher().err(),
      AllOf(ContainsRegex("warning: in step 50 rank 1 computed another gradient of [^\n]* than two other "
                          "ranks[^\n]*; it is replaced"),
            HasSubstr("all 4 ranks continued from commit 49:"),
            HasSubstr("its replacement runs (1 of 1 restarts)")));
}

// Which would make the same error after each replacement, until --max-restarts is used up.
TEST(Elastic, ARankThatComputesWronglyEndsTheRunIfItIsToStop) {
  ElasticTraining training({"--on-loss", "replace", "--max-restarts", "10", "--spares", "1"}, 120s,
                           "wrong-stop");
  training.finish(1);
  EXPECT_THAT(training.launcher().err(),
              AllOf(ContainsRegex("in step 50 rank 1 computed another gradient of "),
                    HasSubstr("no rank is replaced or started again: all ranks have left elastic::run()"),
                    Not(HasSubstr("its replacement runs")), Not(HasSubstr("restart 1 of"))));
}

// The replacements read by themselves, since rank 0 shares nothing with them there.
TEST(Elastic, ReplacementsLoadBeforeTheyMeetTheOthers) {
  ElasticTraining training({"--on-loss", "replace", "--max-restarts", "2"}, 120s, "loads");
  EXPECT_EQ(training.finish(), undisturbed()) << training.launcher().err();
  expect_survivors(training);
  EXPECT_THAT(training.launcher().out(),
              AllOf(HasSubstr("loaded 0: step 3"), HasSubstr("loaded 1: step 3"),
                    Not(HasSubstr("loaded 2: step")), HasSubstr("of 1 at step 4")));
}

TEST(Elastic, RefusesAtTheStartWhatCannotContinueLater) {
  for (const auto& [mode, text] :
       {std::pair{"gloo", "the default group has the backend gloo"},
        std::pair{"group", "there are process groups besides the default group"},
        std::pair{"zero-shared", "does not support share_parameters()"},
        std::pair{"twice", "elastic::run: it has been called before"},
        std::pair{"sharded",
                  "0.weight of fully_shard() cannot be part of an elastic run yet: the ranks share"},
        std::pair{"number", "reshard_after_forward is a number"},
        std::pair{"unknown",
                  "an optimizer has parameters of fully_shard() whose module is not in the state"}}) {
    ElasticTraining training(kOnce, 120s, mode, 2);
    training.finish(1);
    EXPECT_THAT(training.launcher().err(), HasSubstr(text)) << mode;
    EXPECT_THAT(training.launcher().err(), Not(HasSubstr("its replacement runs"))) << mode;
  }
}

}  // namespace
}  // namespace lockstep::testing
