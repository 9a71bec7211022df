// SPDX-License-Identifier: BSD-3-Clause
// A disk that is full while a checkpoint is saved.
#include <algorithm>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <sys/resource.h>
#include <sys/wait.h>
#include <tuple>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "support/error_of.h"
#include "support/temp_folder.h"
#include "unit/checkpoint/manager_test.h"
#include "unit/checkpoint/small_disk.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using testing::contents;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::steps_in;

constexpr const char* kFull = "No space left on device";

// The disk has 1 MB: 400 kB fit, 800 kB more do not.
Value filling(std::int64_t step, std::int64_t kilobytes) {
  return Dict{{"step", step}, {"weights", torch::full({kilobytes * 250}, static_cast<double>(step))}};
}

std::vector<std::string> unfinished_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const auto name = entry.path().filename().string();
    if (name.find(".part") != std::string::npos || name.ends_with(".failed")) names.push_back(name);
  }
  return names;
}

// Takes all that is left.
void fill_disk(const fs::path& file) {
  std::ofstream filler(file, std::ios::binary);
  const std::string page(4096, 'x');
  while (filler << page << std::flush) {
  }
}

class FullDisk : public ::testing::TestWithParam<std::tuple<bool, CheckpointWriting>> {
 protected:
  CheckpointManagerOptions options() const {
    CheckpointManagerOptions given;
    given.async_save = std::get<0>(GetParam());
    given.writing = std::get<1>(GetParam());
    return given;
  }

  // The ending of the names of checkpoints and links.
  std::string ending() const { return std::get<1>(GetParam()) == CheckpointWriting::first_rank ? ".pt" : ""; }

  static std::string error_of_save(CheckpointManager& manager, std::int64_t step, const Value& value,
                                   double metric) {
    return error_of([&] {
      manager.save(step, value, metric);
      manager.wait();
    });
  }

  void expect_old_one(CheckpointManager& manager, const fs::path& folder) const {
    EXPECT_THAT(steps_in(manager), ElementsAre(1));
    EXPECT_TRUE(equal(manager.load_latest()->contents, filling(1, 400)));
    const auto best = manager.load_best();
    EXPECT_EQ(best->info.step, 1);
    EXPECT_EQ(best->info.metric, 0.5);
    for (const auto* link : {"last", "best"}) {
      EXPECT_EQ(fs::read_symlink(folder / (link + ending())), "step-00000001" + ending());
    }
    EXPECT_THAT(unfinished_in(folder), ::testing::IsEmpty());
  }

  testing::TempFolder temp_;
};

INSTANTIATE_TEST_SUITE_P(Saving, FullDisk,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values(CheckpointWriting::first_rank,
                                                              CheckpointWriting::every_rank)),
                         [](const auto& each) {
                           return std::string(std::get<0>(each.param) ? "Async" : "Blocking") +
                                  (std::get<1>(each.param) == CheckpointWriting::first_rank ? "FirstRank"
                                                                                            : "EveryRank");
                         });

TEST_P(FullDisk, KeepsTheOldCheckpointAndRemovesTheNewOne) {
  const auto code = testing::on_small_disk(temp_.path(), [&] {
    const auto folder = temp_.path() / "run";
    CheckpointManager manager(folder, options());
    manager.save(1, filling(1, 400), 0.5);
    manager.wait();
    EXPECT_THAT(error_of_save(manager, 2, filling(2, 800), 0.9),
                AllOf(HasSubstr((folder / "step-00000002").string()), HasSubstr(kFull)));
    expect_old_one(manager, folder);
    // The checkpoint that it would replace stays too.
    EXPECT_THAT(error_of_save(manager, 1, filling(1, 800), 0.9),
                AllOf(HasSubstr((folder / "step-00000001").string()), HasSubstr(kFull)));
    expect_old_one(manager, folder);
    // A smaller checkpoint is saved afterwards.
    manager.save(3, filling(3, 100), 0.9);
    manager.wait();
    EXPECT_TRUE(equal(manager.load_best()->contents, filling(3, 100)));
  });
  if (!code) GTEST_SKIP() << "this system lets nobody make namespaces";
  EXPECT_EQ(*code, 0);
}

TEST_P(FullDisk, WithoutAByteLeftNamesTheFirstFileThatDoesNotFit) {
  const auto code = testing::on_small_disk(temp_.path(), [&] {
    const auto folder = temp_.path() / "run";
    CheckpointManager manager(folder, options());
    manager.save(1, filling(1, 400), 0.5);
    manager.wait();
    fill_disk(temp_.path() / "filler");
    EXPECT_THAT(error_of_save(manager, 2, filling(2, 1), 0.9),
                AllOf(HasSubstr(folder.string() + "/"), HasSubstr(kFull)));
    expect_old_one(manager, folder);
    fs::remove(temp_.path() / "filler");
    manager.save(2, filling(2, 1), 0.9);
    manager.wait();
    EXPECT_EQ(manager.load_best()->info.step, 2);
  });
  if (!code) GTEST_SKIP() << "this system lets nobody make namespaces";
  EXPECT_EQ(*code, 0);
}

// Where namespaces are forbidden, a file that may not grow stands for a disk that is full.
TEST(FileLimit, LeavesTheOldCheckpointIntact) {
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

}  // namespace
}  // namespace lockstep
