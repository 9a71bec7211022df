// SPDX-License-Identifier: BSD-3-Clause
// A signal reaches one rank, or the launcher, at a random moment: all ranks save one checkpoint and the run ends with
// kExitInterrupted. The next run continues, and ends with the weights of an undisturbed one, to the bit.
// LOCKSTEP_FAULT_ROUNDS=100 for as many signals in each mode, LOCKSTEP_FAULT_SEED to see the same ones again.
#include <algorithm>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <random>
#include <regex>
#include <set>
#include <string>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/env.h"
#include "support/launcher_process.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

constexpr int kTrainingRanks = 4;

// A part of a run: from the newest checkpoint in the folder to a signal, or to the end.
class Stage {
 public:
  Stage(const std::string& mode, const TempFolder& folder)
      : folder_(folder.path()),
        launcher_({"run", "--nproc-per-node", std::to_string(kTrainingRanks), "--grace-period", "60",
                   "--on-loss", mode == "elastic" ? "replace" : "restart", "--max-restarts", "5", "--",
                   TRAINING_RANK_PROGRAM, "preempted", mode, "300", folder_.string()},
                  {.env = {{"OMP_NUM_THREADS", "1"}}, .watchdog = 120s}) {}

  LauncherProcess& launcher() { return launcher_; }
  void let_it_end() const { std::ofstream(folder_ / "enough").flush(); }

  // What the ranks have written behind a word, without their numbers.
  std::multiset<std::string> told(const std::string& pattern) const {
    std::multiset<std::string> found;
    const std::regex expression(pattern);
    for (std::sregex_iterator it(launcher_.out().begin(), launcher_.out().end(), expression), end; it != end;
         ++it)
      found.insert((*it)[1]);
    return found;
  }

  std::multiset<std::string> finish(int exit_code, const std::string& pattern) {
    EXPECT_EQ(launcher_.finish(), exit_code) << launcher_.err();
    launcher_.wait_for_no_family();
    return told(pattern);
  }
  // "<rank>: <digest>" of each rank: the statistics of the last batch differ.
  std::multiset<std::string> train_to_the_end() {
    let_it_end();
    return finish(0, "trained ([^\n]*)");
  }

 private:
  std::filesystem::path folder_;
  LauncherProcess launcher_;
};

const std::multiset<std::string>& undisturbed_weights(bool trainer) {
  static std::map<bool, std::multiset<std::string>> weights;
  auto& found = weights[trainer];
  if (found.empty()) {
    const TempFolder folder;
    found = Stage(trainer ? "trainer" : "loop", folder).train_to_the_end();
  }
  return found;
}

// A signal that no thread has taken yet.
bool is_pending(pid_t pid, int signal) {
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("ShdPnd:")) continue;
    return ((std::stoull(line.substr(7), nullptr, 16) >> (signal - 1)) & 1U) != 0;
  }
  return false;
}

class Round {
 public:
  Round(std::string mode, std::mt19937& random) : mode_(std::move(mode)), random_(random) {}

  void play() {
    {
      Stage stage(mode_, folder_);
      stage.launcher().wait_for("pid ", kTrainingRanks);
      pause();
      disturb(stage);
      const auto saved = stage.finish(kExitInterrupted, "saved .: (step [0-9]+)");
      EXPECT_THAT(stage.launcher().err(),
                  HasSubstr("the run was interrupted: its ranks exited with code 75"));
      EXPECT_THAT(stage.launcher().err(), Not(HasSubstr("failed first")));
      EXPECT_THAT(stage.launcher().err(), Not(HasSubstr("restart 1 of")));
      ASSERT_EQ(saved.count(*saved.begin()), std::size_t{kTrainingRanks}) << stage.launcher().out();
      saved_ = *saved.begin();
    }
    EXPECT_EQ(newest_checkpoint(), saved_);
    Stage next(mode_, folder_);
    EXPECT_EQ(next.train_to_the_end(), undisturbed_weights(mode_ == "trainer")) << next.launcher().err();
    EXPECT_EQ(next.told("pid [0-9]+ of . at (step [0-9]+)").count(saved_), std::size_t{kTrainingRanks})
        << next.launcher().out();
  }

 private:
  int draw(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }
  void pause() { std::this_thread::sleep_for(std::chrono::microseconds(draw(400'000))); }
  // "step 13" for step-0000013.pt. The Trainer has others of epochs.
  std::string newest_checkpoint() const {
    std::int64_t newest = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path() / "checkpoints")) {
      const auto name = entry.path().filename().string();
      if (name.starts_with("step-")) newest = std::max<std::int64_t>(newest, std::stoll(name.substr(5)));
    }
    return fmt::format("step {}", newest);
  }

  void disturb(Stage& stage) {
    auto& launcher = stage.launcher();
    const int signal = draw(2) == 0 ? SIGTERM : SIGUSR1;
    const int victim = draw(mode_ == "loop" ? kTrainingRanks + 1 : kTrainingRanks);
    std::cout << fmt::format("{}: SIG{} to {}\n", mode_, ::sigabbrev_np(signal),
                             victim == kTrainingRanks ? "the launcher" : fmt::format("rank {}", victim));
    if (victim == kTrainingRanks) return launcher.send(signal);
    if (mode_ == "elastic" && draw(2) == 0) {  // all are to stop, the one that comes back too
      ::kill(launcher.rank_pid((victim + 1) % kTrainingRanks), SIGKILL);
      pause();
    }
    const pid_t pid = launcher.rank_pid(victim);
    ::kill(pid, signal);
    if (mode_ != "trainer") return;  // it may wait before its last steps
    while (is_pending(pid, signal)) std::this_thread::sleep_for(1ms);
    stage.let_it_end();
  }

  const std::string mode_;
  std::mt19937& random_;
  TempFolder folder_;
  std::string saved_;
};

class Preemption : public ::testing::TestWithParam<const char*> {};

TEST_P(Preemption, LeavesOneCheckpointAndTheBitsStay) {
  ASSERT_THAT(undisturbed_weights(std::string_view(GetParam()) == "trainer"), SizeIs(kTrainingRanks));
  const auto rounds = Env().get_int("LOCKSTEP_FAULT_ROUNDS").value_or(1);
  const auto seed = Env().get_int("LOCKSTEP_FAULT_SEED").value_or(std::random_device()());
  std::cout << "LOCKSTEP_FAULT_SEED=" << seed << std::endl;
  std::mt19937 random(static_cast<unsigned>(seed));
  for (std::int64_t i = 0; i < rounds && !HasFailure(); ++i) Round(GetParam(), random).play();
}
INSTANTIATE_TEST_SUITE_P(Of, Preemption, ::testing::Values("loop", "elastic", "trainer"),
                         [](const auto& parameter) { return std::string(parameter.param); });

}  // namespace
}  // namespace lockstep::testing
