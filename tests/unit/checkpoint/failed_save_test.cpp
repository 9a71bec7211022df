// SPDX-License-Identifier: BSD-3-Clause
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <string>
#include <sys/resource.h>
#include <sys/wait.h>
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
using testing::error_of;
using ::testing::HasSubstr;

class FailedSave : public testing::ManagerTest {};

INSTANTIATE_TEST_SUITE_P(Saving, FailedSave, ::testing::Bool(), testing::saving_name);

TEST_P(FailedSave, AFolderThatVanishesIsMadeAnew) {
  CheckpointManager manager(folder_, options());
  manager.save(1, contents(1));
  manager.wait();
  fs::remove_all(folder_);
  manager.save(2, contents(2));
  manager.wait();
  EXPECT_EQ(manager.load_latest()->info.step, 2);
}

TEST_P(FailedSave, AFailureIsToldAtTheNextCallAtTheLatest) {
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

TEST_P(FailedSave, AReplacementThatFailsLeavesTheMetricOfTheOldOne) {
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

TEST_P(FailedSave, OfTwoFailuresInARowBothAreTold) {
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
