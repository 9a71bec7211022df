// SPDX-License-Identifier: BSD-3-Clause
#include <barrier>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "checkpoint/checkpoint_folder.h"
#include "support/error_of.h"
#include "support/temp_folder.h"
#include "unit/checkpoint/manager_test.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using testing::contents;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::steps_in;

class Manager : public testing::ManagerTest {};

INSTANTIATE_TEST_SUITE_P(Saving, Manager, ::testing::Bool(), testing::saving_name);

TEST_P(Manager, KeepsTheLastTheBestAndTheMilestones) {
  auto given = options();
  given.keep_last = 2;
  given.keep_best = 1;
  given.keep_every = 5;
  CheckpointManager manager(folder_, given);
  EXPECT_FALSE(manager.load_latest());
  for (std::int64_t step = 1; step <= 12; ++step) manager.save(step, contents(step), step == 3 ? 0.9 : 0.1);
  manager.wait();
  EXPECT_THAT(steps_in(manager), ElementsAre(3, 5, 10, 11, 12));
  EXPECT_EQ(manager.load_latest()->info.step, 12);
  const auto best = manager.load_best();
  EXPECT_EQ(best->info.step, 3);
  EXPECT_EQ(best->info.metric, 0.9);
  EXPECT_TRUE(equal(best->contents, contents(3)));
  EXPECT_TRUE(equal(load(folder_ / "last.pt"), contents(12)));
  EXPECT_TRUE(equal(load(folder_ / "best.pt"), contents(3)));
  EXPECT_TRUE(equal(manager.load(10).contents, contents(10)));
  EXPECT_THAT(error_of([&] { manager.load(4); }), HasSubstr("no checkpoint of step 4"));
}

TEST_P(Manager, ALossIsBestWhenSmall) {
  auto given = options();
  given.keep_last = 1;
  given.keep_best = 2;
  given.higher_is_better = false;
  CheckpointManager manager(folder_, given);
  const double losses[] = {3, 1, 2, 5, 4};
  for (std::int64_t step = 0; step < 5; ++step) manager.save(step, contents(step), losses[step]);
  manager.wait();
  EXPECT_THAT(steps_in(manager), ElementsAre(1, 2, 4));
  EXPECT_EQ(manager.load_best()->info.step, 1);
}

// A training that diverged must not take the place of the best one.
TEST_P(Manager, ANanMetricCountsAsNone) {
  auto given = options();
  given.keep_last = 1;
  given.higher_is_better = false;
  CheckpointManager manager(folder_, given);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double losses[] = {0.5, 0.3, nan, std::numeric_limits<double>::infinity(), nan};
  for (std::int64_t step = 0; step < 5; ++step) manager.save(step, contents(step), losses[step]);
  manager.wait();
  EXPECT_THAT(steps_in(manager), ElementsAre(1, 4));
  EXPECT_EQ(manager.load_best()->info.step, 1);
}

// A new run in the folder of another: load_latest() would continue the other one.
TEST_P(Manager, AStepBelowTheLatestIsRejectedAndNothingIsLost) {
  auto given = options();
  given.keep_last = 2;
  CheckpointManager manager(folder_, given);
  for (const std::int64_t step : {100, 200, 300}) manager.save(step, contents(step));
  manager.wait();
  CheckpointManager other(folder_, given);
  EXPECT_THAT(error_of([&] { other.save(60, contents(60)); }),
              AllOf(HasSubstr("step 60 is not saved"), HasSubstr("checkpoint of step 300"),
                    HasSubstr("remove_after()")));
  EXPECT_THAT(error_of([&] { other.save(200, contents(0)); }), HasSubstr("step 200 is not saved"));
  other.wait();
  EXPECT_THAT(steps_in(other), ElementsAre(200, 300));
  EXPECT_TRUE(equal(other.load(200).contents, contents(200)));
  // The newest may be replaced, and later steps saved.
  other.save(300, contents(301));
  other.save(360, contents(360));
  other.wait();
  EXPECT_TRUE(equal(other.load(300).contents, contents(301)));
  EXPECT_THAT(steps_in(other), ElementsAre(300, 360));
}

TEST_P(Manager, ContinuesFromAnEarlierStepAfterRemoveAfter) {
  auto given = options();
  given.keep_last = 0;
  CheckpointManager manager(folder_, given);
  for (const std::int64_t step : {1, 2, 3, 4})
    manager.save(step, contents(step), 0.1 * static_cast<double>(step));
  EXPECT_THAT(error_of([&] { manager.remove_after(7); }), HasSubstr("no checkpoint of step 7"));
  EXPECT_THAT(steps_in(manager), ElementsAre(1, 2, 3, 4));
  manager.remove_after(2);
  EXPECT_THAT(steps_in(manager), ElementsAre(1, 2));
  EXPECT_TRUE(equal(load(folder_ / "last.pt"), contents(2)));
  EXPECT_TRUE(equal(load(folder_ / "best.pt"), contents(2)));
  std::ifstream metrics(folder_ / "metrics.json");
  const std::string text{std::istreambuf_iterator<char>(metrics), {}};
  EXPECT_THAT(text, AllOf(HasSubstr("\"2\""), Not(HasSubstr("\"3\"")), Not(HasSubstr("\"4\""))));
  manager.save(3, contents(33));
  manager.wait();
  EXPECT_TRUE(equal(manager.load_latest()->contents, contents(33)));
  EXPECT_EQ(manager.load_best()->info.step, 2);
  EXPECT_EQ(manager.load(3).info.metric, std::nullopt);
}

TEST_P(Manager, WithoutKeepBestThereIsNoBestLink) {
  auto given = options();
  given.keep_last = 1;
  given.keep_best = 0;
  CheckpointManager manager(folder_, given);
  manager.save(1, contents(1), 0.9);
  manager.save(2, contents(2), 0.1);
  manager.wait();
  EXPECT_TRUE(equal(load(folder_ / "best.pt"), contents(2)));
}

TEST_P(Manager, ReadingChangesNothingInTheFolder) {
  CheckpointManager writer(folder_, options());
  writer.save(1, contents(1));
  writer.wait();
  std::ofstream(folder_ / "step-00000002.pt.part") << "being written";
  CheckpointManager reader(folder_, options());
  EXPECT_EQ(reader.load_latest()->info.step, 1);
  EXPECT_TRUE(fs::exists(folder_ / "step-00000002.pt.part"));
}

TEST_P(Manager, ANewManagerFindsExistingCheckpoints) {
  { CheckpointManager(folder_, options()).save(7, contents(7), 0.5); }
  CheckpointManager manager(folder_, options());
  EXPECT_EQ(manager.load_latest()->info.step, 7);
  EXPECT_EQ(manager.load_best()->info.metric, 0.5);
}

TEST_P(Manager, LeftoversOfKilledWritersAreRemovedAndOtherFilesAreNot) {
  fs::create_directories(folder_);
  for (const auto* name : {"step-00000001.pt.part", "notes.txt", "other.part"})
    std::ofstream(folder_ / name) << "x";
  CheckpointManager manager(folder_, options());
  manager.save(2, contents(2));
  manager.wait();
  EXPECT_FALSE(fs::exists(folder_ / "step-00000001.pt.part"));
  EXPECT_TRUE(fs::exists(folder_ / "notes.txt"));
  EXPECT_TRUE(fs::exists(folder_ / "other.part"));
}

TEST_P(Manager, ManagersThatSaveAtTheSameTimeKeepWholeCheckpoints) {
  constexpr std::int64_t steps = 30;
  std::barrier together(2);
  const auto save_all = [&] {
    auto given = options();
    given.writing = CheckpointWriting::every_rank;
    CheckpointManager manager(folder_, given);
    for (std::int64_t step = 1; step <= steps; ++step) {
      together.arrive_and_wait();
      EXPECT_NO_THROW({
        manager.save(step, contents(step), 0.5);
        manager.wait();
      });
      together.arrive_and_wait();
      EXPECT_TRUE(equal(manager.load(step).contents, contents(step)));
    }
  };
  std::thread other(save_all);
  save_all();
  other.join();
  for (const auto& entry : fs::directory_iterator(folder_)) EXPECT_NE(entry.path().extension(), ".part");
}

TEST_P(Manager, UnfinishedFoldersAreRemovedOnceTheirWriterIsDead) {
  fs::create_directories(folder_);
  checkpointing::CheckpointFolder other(folder_);
  const auto living = other.new_folder_for(2);
  const auto dead = checkpointing::CheckpointFolder(folder_).new_folder_for(2);
  EXPECT_NE(living, dead);
  CheckpointManager manager(folder_, options());
  manager.save(2, contents(2));
  manager.wait();
  EXPECT_TRUE(fs::exists(living));
  EXPECT_FALSE(fs::exists(dead));
}

// The loop of docs/checkpoints.md, which ends after the checkpoint of step `until`.
void train_as_documented(const fs::path& folder, const CheckpointManagerOptions& options, std::int64_t until,
                         std::vector<float>& seen) {
  const auto samples = torch::arange(10, torch::kFloat);
  data::DataLoader<data::TensorDataset> loader({samples, samples},
                                               {.batch_size = 2, .shuffle = true, .seed = 3});
  std::int64_t epoch = 0;
  std::int64_t step = 0;
  TrainingState training;
  training.add("loader", loader).add("epoch", epoch).add("step", step);
  CheckpointManager manager(folder, options);
  if (auto found = manager.load_latest()) training.load_state_dict(found->contents.as_dict());
  while (true) {
    loader.set_epoch(epoch);
    for (auto& [inputs, targets] : loader) {
      for (const auto& sample : inputs.unbind()) seen.push_back(sample.template item<float>());
      if (++step % 3 == 0) manager.save(step, training.state_dict());
      if (step % 3 == 0 && step == until) return;
    }
    ++epoch;
    manager.save(step, training.state_dict(), 0.5);
    if (step == until) return;
  }
}

// At the end of an epoch, within one, at its last batch, and at an end once more.
TEST_P(Manager, TheDocumentedLoopResumes) {
  std::vector<float> whole;
  train_as_documented(temp_.path() / "whole", options(), 20, whole);
  std::vector<float> parts;
  for (const std::int64_t until : {5, 9, 15, 20}) {
    train_as_documented(folder_, options(), until, parts);
    EXPECT_EQ(CheckpointManager(folder_, options()).checkpoints().back().step, until);
  }
  EXPECT_EQ(whole.size(), 40);
  EXPECT_EQ(parts, whole);
}

TEST_P(Manager, SavesTheValuesAtTheCall) {
  CheckpointManager manager(folder_, options());
  auto weights = torch::zeros({1'000'000});
  for (std::int64_t step = 1; step <= 3; ++step) {
    weights.fill_(step);
    manager.save(step, Dict{{"weights", weights}});
    weights.fill_(-1);
  }
  manager.wait();
  for (std::int64_t step = 1; step <= 3; ++step) {
    EXPECT_TRUE(manager.load(step).contents["weights"].as_tensor().eq(step).all().item<bool>());
  }
}

TEST(MixedFolder, AnIntactFileIsNotSkippedForAnOlderFolder) {
  const testing::TempFolder temp;
  CheckpointManager(temp.path(), {.writing = CheckpointWriting::every_rank}).save(1, contents(1));
  CheckpointManager manager(temp.path(), {.sync = false});
  manager.save(2, contents(2));
  Dict there{{"step", 0}};
  EXPECT_THAT(error_of([&] { manager.load_latest(there); }),
              AllOf(HasSubstr("step-00000002.pt"), HasSubstr("load_latest() without")));
}

TEST(ManagerOptions, NegativeNumbersAreRejected) {
  const testing::TempFolder temp;
  EXPECT_THAT(error_of([&] { CheckpointManager(temp.path(), {.keep_last = -1}); }), HasSubstr("keep_last"));
  CheckpointManager manager(temp.path());
  EXPECT_THAT(error_of([&] { manager.save(-1, None{}); }), HasSubstr("step -1"));
}

}  // namespace
}  // namespace lockstep
