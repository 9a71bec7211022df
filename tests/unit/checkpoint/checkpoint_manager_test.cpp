// SPDX-License-Identifier: BSD-3-Clause
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "support/error_of.h"
#include "support/temp_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::Not;
using Steps = std::vector<std::int64_t>;

Value contents(std::int64_t step) { return Dict{{"step", step}, {"weights", torch::full({100}, step)}}; }

Steps steps_in(const CheckpointManager& manager) {
  Steps steps;
  for (const auto& info : manager.checkpoints()) steps.push_back(info.step);
  return steps;
}

// Turns one byte in the middle of a file round.
void damage(const fs::path& file) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  const auto place = static_cast<std::streamoff>(fs::file_size(file) / 2);
  stream.seekg(place);
  const auto byte = static_cast<char>(~stream.get());
  stream.seekp(place);
  stream.put(byte);
}

class Manager : public ::testing::TestWithParam<bool> {
 protected:
  CheckpointManagerOptions options() const {
    CheckpointManagerOptions given;
    given.async_save = GetParam();
    given.sync = false;
    return given;
  }
  testing::TempFolder temp_;
  fs::path folder_ = temp_.path() / "runs" / "first";
};

INSTANTIATE_TEST_SUITE_P(Saving, Manager, ::testing::Bool(),
                         [](const auto& each) { return each.param ? "Async" : "Blocking"; });

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
TEST_P(Manager, AMetricThatIsNoNumberIsNone) {
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

// Of a run that began anew in the folder of another: load_latest() would go on with the other one.
TEST_P(Manager, AStepBelowTheLatestIsRefusedAndNothingIsLost) {
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
  // The latest may be replaced, and it goes on above it.
  other.save(300, contents(301));
  other.save(360, contents(360));
  other.wait();
  EXPECT_TRUE(equal(other.load(300).contents, contents(301)));
  EXPECT_THAT(steps_in(other), ElementsAre(300, 360));
}

TEST_P(Manager, GoesBackWhenTheLaterOnesAreRemoved) {
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

// It came back to the one before, which is further from the end than the damaged one.
TEST_P(Manager, ADamagedCheckpointIsNoLatest) {
  CheckpointManager manager(folder_, options());
  for (const std::int64_t step : {10, 20, 30}) manager.save(step, contents(step));
  manager.wait();
  damage(folder_ / "step-00000030.pt");
  EXPECT_THAT(error_of([&] { manager.save(25, contents(25)); }), HasSubstr("step 25 is not saved"));
  EXPECT_EQ(manager.load_latest()->info.step, 20);
  manager.save(25, contents(25));
  manager.wait();
  EXPECT_EQ(CheckpointManager(folder_, options()).load_latest()->info.step, 25);
  manager.save(30, contents(30));
  manager.wait();
  EXPECT_THAT(error_of([&] { manager.save(26, contents(26)); }), HasSubstr("step 26 is not saved"));
}

// The run goes on below it, and what it saves is what counts.
TEST_P(Manager, ADamagedCheckpointIsNeitherLastNorBestNorCounted) {
  auto given = options();
  given.keep_last = 2;
  CheckpointManager manager(folder_, given);
  manager.save(50, contents(50), 0.5);
  manager.save(100, contents(100), 0.9);
  manager.wait();
  damage(folder_ / "step-00000100.pt");
  EXPECT_EQ(manager.load_latest()->info.step, 50);
  manager.save(60, contents(60), 0.6);
  manager.save(70, contents(70), 0.1);
  manager.save(80, contents(80), 0.1);
  manager.wait();
  EXPECT_THAT(steps_in(manager), ElementsAre(60, 70, 80, 100));
  EXPECT_TRUE(equal(load(folder_ / "last.pt"), contents(80)));
  EXPECT_TRUE(equal(load(folder_ / "best.pt"), contents(60)));
  manager.save(110, contents(110), 0.1);
  manager.wait();
  EXPECT_THAT(steps_in(manager), ElementsAre(60, 80, 100, 110));
  manager.save(120, contents(120), 0.1);
  manager.wait();
  EXPECT_THAT(steps_in(manager), ElementsAre(60, 110, 120));
}

TEST_P(Manager, ADamagedCheckpointThatIsReplacedCountsAgain) {
  auto given = options();
  given.keep_last = 2;
  CheckpointManager manager(folder_, given);
  manager.save(50, contents(50), 0.5);
  manager.save(100, contents(100), 0.9);
  manager.wait();
  damage(folder_ / "step-00000100.pt");
  EXPECT_EQ(manager.load_best()->info.step, 50);
  manager.save(100, contents(101), 0.9);
  manager.wait();
  EXPECT_THAT(steps_in(manager), ElementsAre(50, 100));
  EXPECT_TRUE(equal(load(folder_ / "last.pt"), contents(101)));
  EXPECT_TRUE(equal(load(folder_ / "best.pt"), contents(101)));
}

TEST_P(Manager, WhenAllThatStayAreDamagedNoLinkPointsAtThem) {
  CheckpointManager manager(folder_, options());
  for (const std::int64_t step : {10, 20, 30}) manager.save(step, contents(step), 0.5);
  manager.wait();
  damage(folder_ / "step-00000010.pt");
  damage(folder_ / "step-00000020.pt");
  damage(folder_ / "step-00000030.pt");
  EXPECT_THAT(error_of([&] { manager.load_latest(); }), HasSubstr("none of the 3 checkpoints"));
  manager.remove_after(20);
  EXPECT_THAT(steps_in(manager), ElementsAre(10, 20));
  EXPECT_FALSE(fs::is_symlink(folder_ / "last.pt"));
  EXPECT_FALSE(fs::is_symlink(folder_ / "best.pt"));
}

// That it has begun, in a thread, mends nothing.
TEST_P(Manager, AFailedReplacementOfADamagedCheckpointLeavesItDamaged) {
  CheckpointManager manager(folder_, options());
  for (const std::int64_t step : {10, 20, 30}) manager.save(step, contents(step));
  manager.wait();
  damage(folder_ / "step-00000030.pt");
  EXPECT_EQ(manager.load_latest()->info.step, 20);
  fs::remove(folder_ / "step-00000030.pt");
  fs::create_directories(folder_ / "step-00000030.pt" / "in the way");
  const auto error = error_of([&] {
    manager.save(30, contents(30));
    manager.wait();
  });
  EXPECT_THAT(error, HasSubstr("step-00000030.pt"));
  manager.save(25, contents(25));
  manager.wait();
  EXPECT_TRUE(equal(load(folder_ / "last.pt"), contents(25)));
}

TEST_P(Manager, WithoutPlaceForTheBestThereIsNoLinkToIt) {
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

TEST_P(Manager, NothingThatLoadsIsAnErrorAndNoFreshStart) {
  CheckpointManager manager(folder_, options());
  manager.save(1, contents(1));
  manager.wait();
  damage(folder_ / "step-00000001.pt");
  EXPECT_THAT(error_of([&] { manager.load_latest(); }), HasSubstr("none of the 1 checkpoints can be loaded"));
}

TEST_P(Manager, ANewManagerFindsWhatTheOldOneWrote) {
  { CheckpointManager(folder_, options()).save(7, contents(7), 0.5); }
  CheckpointManager manager(folder_, options());
  EXPECT_EQ(manager.load_latest()->info.step, 7);
  EXPECT_EQ(manager.load_best()->info.metric, 0.5);
}

TEST_P(Manager, ADamagedCheckpointIsPassedOver) {
  CheckpointManager manager(folder_, options());
  for (const std::int64_t step : {1, 2, 3}) manager.save(step, contents(step));
  manager.wait();
  damage(folder_ / "step-00000003.pt");
  fs::resize_file(folder_ / "step-00000002.pt", 100);
  const auto latest = manager.load_latest();
  ASSERT_TRUE(latest);
  EXPECT_EQ(latest->info.step, 1);
  EXPECT_THAT(error_of([&] { manager.load(3); }), HasSubstr("step-00000003.pt"));
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

TEST_P(Manager, WithoutItsFileOfMetricsOnlyTheMetricsAreGone) {
  CheckpointManager manager(folder_, options());
  manager.save(1, contents(1), 0.5);
  manager.wait();
  std::ofstream(folder_ / "metrics.json") << "{ damaged";
  EXPECT_EQ(manager.load_latest()->info.step, 1);
  EXPECT_FALSE(manager.load_best());
}

TEST_P(Manager, AFolderThatVanishesIsMadeAnew) {
  CheckpointManager manager(folder_, options());
  manager.save(1, contents(1));
  manager.wait();
  fs::remove_all(folder_);
  manager.save(2, contents(2));
  manager.wait();
  EXPECT_EQ(manager.load_latest()->info.step, 2);
}

TEST_P(Manager, AFailureIsToldAtTheNextCallAtTheLatest) {
  CheckpointManager manager(folder_, options());
  manager.save(1, contents(1));
  manager.wait();
  fs::remove_all(folder_);
  std::ofstream(folder_) << "a file where the folder was";
  const auto error = error_of([&] {
    manager.save(2, contents(2));
    manager.wait();
  });
  EXPECT_THAT(error, HasSubstr(folder_.string()));
}

TEST_P(Manager, AReplacementThatFailsLeavesTheMetricOfTheOldOne) {
  CheckpointManager manager(folder_, options());
  manager.save(1, contents(1), 0.9);
  manager.wait();
  fs::remove(folder_ / "step-00000001.pt");
  fs::create_directories(folder_ / "step-00000001.pt" / "in the way");
  const auto error = error_of([&] {
    manager.save(1, contents(1), 0.1);
    manager.wait();
  });
  EXPECT_THAT(error, HasSubstr("step-00000001.pt"));
  ASSERT_EQ(manager.checkpoints().size(), 1);
  EXPECT_EQ(manager.checkpoints()[0].metric, 0.9);
}

TEST_P(Manager, OfTwoFailuresInARowBothAreTold) {
  CheckpointManager manager(folder_, options());
  manager.save(1, contents(1));
  manager.wait();
  fs::remove_all(folder_);
  std::ofstream(folder_) << "a file where the folder was";
  const auto error = error_of([&] {
    manager.save(2, contents(2));
    manager.save(3, Dict{{"part", ShardedTensor{.size = {2}}}});
  });
  EXPECT_THAT(error, HasSubstr(folder_.string()));
  if (GetParam()) {
    EXPECT_THAT(error, HasSubstr("CheckpointWriting::every_rank"));
  }
}

// The loop of docs/checkpoints.md, which ends after the checkpoint of step `until`.
void train_as_documented(const fs::path& folder, const CheckpointManagerOptions& options, std::int64_t until,
                         std::vector<float>& seen) {
  const auto samples = torch::arange(10, torch::kFloat);
  data::Loader<data::TensorDataset> loader({samples, samples}, {.batch_size = 2, .shuffle = true, .seed = 3});
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
TEST_P(Manager, TheDocumentedLoopGoesOnWhereItStopped) {
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

TEST_P(Manager, WhatIsSavedIsWhatWasThereWhenSaveReturned) {
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

// As a user who may not read everything; where the tests run as one, as that one.
class Unprivileged {
 public:
  Unprivileged() : root_(::geteuid() == 0) {
    if (root_ && ::seteuid(65534) != 0) throw std::runtime_error("cannot be another user");
  }
  ~Unprivileged() {
    if (root_ && ::seteuid(0) != 0) std::abort();
  }
  Unprivileged(const Unprivileged&) = delete;
  Unprivileged& operator=(const Unprivileged&) = delete;

 private:
  bool root_;
};

std::string error_without_permission(const fs::path& file, const std::function<void()>& action) {
  const auto before = fs::status(file).permissions();
  fs::permissions(file, fs::perms::none);
  std::string error;
  {
    const Unprivileged unprivileged;
    error = error_of(action);
  }
  fs::permissions(file, before);
  return error;
}

class Unreadable : public ::testing::Test {
 protected:
  Unreadable() { fs::permissions(temp_.path(), fs::perms(0755)); }
  testing::TempFolder temp_;
};

TEST_F(Unreadable, IsNoDamageThatAnOlderCheckpointHides) {
  CheckpointManager manager(temp_.path(), {.sync = false});
  for (const std::int64_t step : {1, 2}) manager.save(step, contents(step), 0.5);
  const auto newest = temp_.path() / "step-00000002.pt";
  EXPECT_THAT(
      error_without_permission(newest, [&] { manager.load_latest(); }),
      AllOf(HasSubstr("step-00000002.pt: cannot be read: Permission denied"), HasSubstr("load(step)")));
  error_without_permission(newest, [&] { EXPECT_THROW(load(newest), CheckpointReadError); });
  // Neither is a file of metrics: the next save would write over it.
  const auto metrics = temp_.path() / "metrics.json";
  EXPECT_THAT(error_without_permission(metrics, [&] { manager.load_best(); }), HasSubstr("metrics.json"));
  EXPECT_EQ(manager.load_latest()->info.step, 2);
  EXPECT_THROW(load(temp_.path() / "none.pt"), CheckpointError);
  try {
    load(temp_.path() / "none.pt");
  } catch (const CheckpointReadError&) {
    FAIL() << "what is not there cannot be whole";
  } catch (const CheckpointError&) {
  }
}

TEST_F(Unreadable, PartsAreNoDamageEither) {
  CheckpointManager manager(temp_.path(), {.sync = false, .writing = CheckpointWriting::every_rank});
  for (const std::int64_t step : {1, 2}) manager.save(step, contents(step));
  Dict there{{"step", 0}};
  for (const auto& entry : fs::directory_iterator(temp_.path() / "step-00000002")) {
    const auto file = entry.path();
    EXPECT_THAT(error_without_permission(file, [&] { manager.load_latest(there); }),
                AllOf(HasSubstr(file.filename().string()), HasSubstr("Permission denied")));
    EXPECT_THAT(error_without_permission(file, [&] { manager.load_latest(); }),
                HasSubstr("Permission denied"));
  }
  EXPECT_EQ(there["step"].as_int(), 0);
  // A file that is gone is damage.
  fs::remove(temp_.path() / "step-00000002" / ".metadata");
  EXPECT_EQ(manager.load_latest(there)->step, 1);
}

TEST(MixedFolder, AWholeFileIsNotPassedOverForAnOlderFolder) {
  const testing::TempFolder temp;
  CheckpointManager(temp.path(), {.writing = CheckpointWriting::every_rank}).save(1, contents(1));
  CheckpointManager manager(temp.path(), {.sync = false});
  manager.save(2, contents(2));
  Dict there{{"step", 0}};
  EXPECT_THAT(error_of([&] { manager.load_latest(there); }),
              AllOf(HasSubstr("step-00000002.pt"), HasSubstr("load_latest() without")));
}

// A file that may not grow stands for a disk that is full.
TEST(FullDisk, LeavesTheOldCheckpointIntact) {
  const testing::TempFolder temp;
  const auto file = temp.path() / "net.pt";
  save(contents(1), file);
  const auto pid = ::fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{.rlim_cur = 4096, .rlim_max = 4096};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const auto error = error_of([&] { save(Dict{{"weights", torch::zeros({10'000})}}, file); });
    const bool told =
        error.find(file.string()) != std::string::npos && error.find("too large") != std::string::npos;
    ::_exit(told ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(equal(load(file), contents(1)));
  EXPECT_EQ(std::distance(fs::directory_iterator(temp.path()), fs::directory_iterator()), 1);
}

TEST(ManagerOptions, NegativeNumbersAreRefused) {
  const testing::TempFolder temp;
  EXPECT_THAT(error_of([&] { CheckpointManager(temp.path(), {.keep_last = -1}); }), HasSubstr("keep_last"));
  CheckpointManager manager(temp.path());
  EXPECT_THAT(error_of([&] { manager.save(-1, None{}); }), HasSubstr("step -1"));
}

}  // namespace
}  // namespace lockstep
