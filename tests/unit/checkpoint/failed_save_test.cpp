// SPDX-License-Identifier: BSD-3-Clause
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <string>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

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

// As a user who may not do everything; where the tests run as one, as that one.
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

class FailedSave : public testing::ManagerTest {};

INSTANTIATE_TEST_SUITE_P(Saving, FailedSave, ::testing::Bool(), testing::saving_name);

// Made anew without a word, it would hide that all that was saved is lost.
TEST_P(FailedSave, AMissingFolderIsAnErrorUntilItIsRestored) {
  for (const auto writing : {CheckpointWriting::first_rank, CheckpointWriting::every_rank}) {
    auto given = options();
    given.writing = writing;
    CheckpointManager manager(folder_, given);
    manager.save(1, contents(1), 0.5);
    manager.wait();
    const auto aside = temp_.path() / "aside";
    fs::rename(folder_, aside);
    for (const std::int64_t step : {2, 3}) {
      EXPECT_THAT(
          error_of([&] { manager.save(step, contents(step), 0.6); }),
          AllOf(HasSubstr(folder_.string() + ": the checkpoint folder and its checkpoints have disappeared"),
                HasSubstr("new CheckpointManager")));
    }
    EXPECT_FALSE(fs::exists(folder_));
    fs::rename(aside, folder_);
    manager.save(4, contents(4), 0.6);
    manager.wait();
    EXPECT_THAT(testing::steps_in(manager), ElementsAre(1, 4));
    fs::remove_all(folder_);
    CheckpointManager other(folder_, given);
    other.save(1, contents(1));
    other.wait();
    EXPECT_EQ(other.load_latest()->info.step, 1);
    fs::remove_all(folder_);
  }
}

TEST_P(FailedSave, TheFirstSaveDoesNotRecreateAFolderWithCheckpoints) {
  {
    CheckpointManager before(folder_, options());
    before.save(1, contents(1));
  }
  CheckpointManager manager(folder_, options());
  fs::remove_all(folder_);
  EXPECT_THAT(error_of([&] { manager.save(2, contents(2)); }), HasSubstr("have disappeared"));
}

TEST_P(FailedSave, TheFirstSaveCreatesAMissingFolder) {
  CheckpointManager manager(folder_, options());
  fs::remove_all(folder_);
  manager.save(1, contents(1));
  manager.wait();
  EXPECT_EQ(manager.load_latest()->info.step, 1);
}

TEST_P(FailedSave, AFailureIsReportedByTheNextCall) {
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

TEST_P(FailedSave, AFailedReplacementKeepsTheOldMetric) {
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

TEST_P(FailedSave, TwoConsecutiveFailuresAreBothReported) {
  CheckpointManager manager(folder_, options());
  manager.save(1, contents(1));
  manager.wait();
  fs::create_directories(folder_ / "step-00000002.pt" / "in the way");
  const auto error = error_of([&] {
    manager.save(2, contents(2));
    manager.save(3, Dict{{"part", ShardedTensor{.size = {2}}}});
  });
  EXPECT_THAT(error, HasSubstr("step-00000002.pt"));
  if (GetParam()) {
    EXPECT_THAT(error, HasSubstr("CheckpointWriting::every_rank"));
  }
}

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

TEST_F(Unreadable, IsNotSkippedAsDamage) {
  CheckpointManager manager(temp_.path(), {.sync = false});
  for (const std::int64_t step : {1, 2}) manager.save(step, contents(step), 0.5);
  const auto newest = temp_.path() / "step-00000002.pt";
  EXPECT_THAT(
      error_without_permission(newest, [&] { manager.load_latest(); }),
      AllOf(HasSubstr("step-00000002.pt: cannot be read: Permission denied"), HasSubstr("load(step)")));
  error_without_permission(newest, [&] { EXPECT_THROW(load(newest), CheckpointReadError); });
  // Neither is a metrics file: the next save would overwrite it.
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

TEST_F(Unreadable, PartsAreNotSkippedAsDamage) {
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
  // A missing file counts as damage.
  fs::remove(temp_.path() / "step-00000002" / ".metadata");
  EXPECT_EQ(manager.load_latest(there)->step, 1);
}

TEST_P(FailedSave, AReadOnlyFolderKeepsItsCheckpoint) {
  fs::permissions(temp_.path(), fs::perms(0755));
  for (const auto writing : {CheckpointWriting::first_rank, CheckpointWriting::every_rank}) {
    auto given = options();
    given.writing = writing;
    CheckpointManager manager(folder_, given);
    manager.save(1, contents(1), 0.5);
    manager.wait();
    fs::permissions(folder_, fs::perms(0555));
    {
      const Unprivileged unprivileged;
      const auto error = error_of([&] {
        manager.save(2, contents(2), 0.6);
        manager.wait();
      });
      // The first file that a save writes.
      const auto* file = writing == CheckpointWriting::first_rank ? "metrics.json" : "step-00000002.";
      EXPECT_THAT(error, AllOf(HasSubstr((folder_ / file).string()), HasSubstr("Permission denied")));
      EXPECT_THAT(error_of([&] { save(contents(2), folder_ / "net.pt"); }),
                  AllOf(HasSubstr((folder_ / "net.pt").string()), HasSubstr("Permission denied")));
      EXPECT_EQ(manager.load_latest()->info.step, 1);
    }
    EXPECT_TRUE(equal(manager.load_best()->contents, contents(1)));
    EXPECT_THAT(testing::steps_in(manager), ElementsAre(1));
    fs::permissions(folder_, fs::perms(0755));
    fs::remove_all(folder_);
  }
}

}  // namespace
}  // namespace lockstep
