// SPDX-License-Identifier: BSD-3-Clause
// Processes that are killed in the middle of saving: what is on disk is the old checkpoint or the new one.
#include <chrono>
#include <csignal>
#include <random>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/checkpoint/checkpoint_manager.h>

#include "base/unique_fd.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

constexpr int kKills = 500;
constexpr std::int64_t kNumbers = 60'000;

Value contents(std::int64_t step) {
  return Dict{{"step", step}, {"first", torch::full({kNumbers}, step)}, {"second", torch::full({10}, step)}};
}

CheckpointManagerOptions options(bool async) {
  CheckpointManagerOptions given;
  given.keep_last = 2;
  given.async_save = async;
  given.sync = false;
  return given;
}

// Saves step after step, and tells each number once its checkpoint counts as written.
[[noreturn]] void save_until_killed(const std::filesystem::path& folder, std::int64_t first, bool async,
                                    int told) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  CheckpointManager manager(folder, options(async));
  for (auto step = first;; ++step) {
    manager.save(step, contents(step), static_cast<double>(step % 7));
    manager.wait();
    if (::write(told, &step, sizeof(step)) != sizeof(step)) ::_exit(1);
  }
}

struct Child {
  pid_t pid;
  UniqueFd told;
};

Child start(const std::filesystem::path& folder, std::int64_t first, bool async) {
  int ends[2];
  if (::pipe(ends) != 0) throw std::runtime_error("no pipe");
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::close(ends[0]);
    save_until_killed(folder, first, async, ends[1]);
  }
  ::close(ends[1]);
  return {pid, UniqueFd(ends[0])};
}

std::int64_t last_told(const Child& child, std::int64_t before) {
  std::int64_t step = before;
  while (::read(child.told.get(), &step, sizeof(step)) == sizeof(step)) {
  }
  return step;
}

TEST(KilledSaves, LeaveTheOldOrTheNewCheckpoint) {
  torch::set_num_threads(1);  // a fork has one thread
  const TempFolder temp;
  std::mt19937 random(7);
  std::int64_t written = 0;
  int in_the_middle = 0;
  for (int kill = 0; kill < kKills; ++kill) {
    const auto child = start(temp.path(), written + 1, kill % 2 == 1);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 12'000));
    ::kill(child.pid, SIGKILL);
    ::waitpid(child.pid, nullptr, 0);
    const auto told = last_told(child, written);
    for (const auto& entry : std::filesystem::directory_iterator(temp.path())) {
      if (entry.path().extension() == ".part") ++in_the_middle;
    }
    CheckpointManager manager(temp.path(), options(false));
    const auto latest = manager.load_latest();
    if (told > 0) {
      ASSERT_TRUE(latest) << "kill " << kill;
      ASSERT_GE(latest->info.step, told) << "kill " << kill;
    }
    if (latest) {
      ASSERT_TRUE(equal(latest->contents, contents(latest->info.step))) << "kill " << kill;
      written = latest->info.step;
    }
  }
  EXPECT_GT(in_the_middle, kKills / 20) << "hardly any kill hit a save";
}

}  // namespace
}  // namespace lockstep::testing
