// SPDX-License-Identifier: BSD-3-Clause
// Processes that are killed in the middle of saving: what is on disk is the old checkpoint or the new one.
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <iostream>
#include <random>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/checkpoint/checkpoint_manager.h>
#include <lockstep/checkpoint/distributed_checkpoint.h>

#include "base/deadline.h"
#include "base/env.h"
#include "base/unique_fd.h"
#include "support/file_system_faults.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;

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

// Stops the child first, to see whether it has a file open in `folder`. Returns that, after the kill.
bool kill_and_see(pid_t pid, const fs::path& folder) {
  ::kill(pid, SIGSTOP);
  int status = 0;
  ::waitpid(pid, &status, WUNTRACED);
  EXPECT_TRUE(WIFSTOPPED(status)) << "it ended by itself";
  bool writes = false;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(fmt::format("/proc/{}/fd", pid), code)) {
    const auto target = fs::read_symlink(entry.path(), code).string();
    writes = writes || target.starts_with(folder.string() + "/");
  }
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  return writes;
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
    if (kill_and_see(child.pid, temp.path())) ++in_the_middle;
    const auto told = last_told(child, written);
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

int rounds() { return static_cast<int>(Env().get_int("LOCKSTEP_FAULT_ROUNDS").value_or(40)); }

Value save_of(int rank, std::int64_t number) {
  return Dict{{"rank", rank}, {"number", number}, {"tensor", torch::full({2000 * (rank + 1)}, number)}};
}

using Save = std::function<void(int rank, std::int64_t number)>;

// Three processes that save to one place until they are killed. A new one takes the place of each.
class Savers {
 public:
  Savers(fs::path folder, Save save) : folder_(std::move(folder)), save_(std::move(save)) {
    for (int rank = 0; rank < kRanks; ++rank) start(rank);
  }
  ~Savers() {
    for (int rank = 0; rank < kRanks; ++rank) kill(rank);
  }
  Savers(const Savers&) = delete;
  Savers& operator=(const Savers&) = delete;

  // Returns whether the process was writing.
  bool replace(int rank) {
    const auto writes = kill(rank);
    start(rank);
    return writes;
  }
  std::int64_t saves() const { return *saves_; }

  static constexpr int kRanks = 3;

 private:
  void start(int rank) {
    const auto pid = ::fork();
    if (pid == 0) save_until_killed(rank);
    pids_[static_cast<std::size_t>(rank)] = pid;
  }
  [[noreturn]] void save_until_killed(int rank) const {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    try {
      for (std::int64_t number = 0;; ++number) {
        save_(rank, number);
        ++*saves_;
      }
    } catch (const std::exception& error) {
      std::cerr << "rank " << rank << ": " << error.what() << std::endl;
      ::_exit(1);
    }
  }
  bool kill(int rank) { return kill_and_see(pids_[static_cast<std::size_t>(rank)], folder_); }

  fs::path folder_;
  Save save_;
  std::array<pid_t, kRanks> pids_{};
  std::atomic<std::int64_t>* saves_ = static_cast<std::atomic<std::int64_t>*>(
      ::mmap(nullptr, sizeof(*saves_), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
};

void expect_whole_save(const Value& found) {
  const auto rank = static_cast<int>(found["rank"].as_int());
  ASSERT_TRUE(equal(found, save_of(rank, found["number"].as_int())));
}

// Reads at any moment from the first save on.
void kill_savers(const fs::path& folder, const Save& save, const std::function<Value()>& load_it) {
  torch::set_num_threads(1);  // a fork has one thread
  std::mt19937 random(13);
  int in_the_middle = 0;
  {
    Savers savers(folder, save);
    for (int kill = 0; kill < rounds(); ++kill) {
      // A slow disk makes fewer saves than kills.
      const Deadline deadline(std::chrono::seconds(60));
      while (savers.saves() <= kill && !deadline.expired()) std::this_thread::yield();
      ASSERT_GT(savers.saves(), kill);
      ASSERT_NO_FATAL_FAILURE(expect_whole_save(load_it())) << "kill " << kill;
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 6'000));
      in_the_middle += savers.replace(static_cast<int>(random() % Savers::kRanks)) ? 1 : 0;
      ASSERT_NO_FATAL_FAILURE(expect_whole_save(load_it())) << "kill " << kill;
    }
  }
  EXPECT_GT(in_the_middle, rounds() / 20) << "hardly any kill hit a save";
  expect_whole_save(load_it());
  save(0, 1);
  expect_whole_save(load_it());
}

std::ptrdiff_t files_in(const fs::path& folder) {
  return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
}

TEST(KilledSaves, OfSeveralRanksToOneFileLeaveItWhole) {
  for (const bool unnamed : {true, false}) {
    const ScopedFaults faults({.no_unnamed_files = !unnamed});
    const TempFolder temp;
    const auto file = temp.path() / "net.pt";
    const auto to_file = [&](int rank, std::int64_t number) {
      save(save_of(rank, number), file, {.sync = number % 4 == 0});
    };
    kill_savers(temp.path(), to_file, [&] { return load(file, {.verify = true}); });
    EXPECT_EQ(files_in(temp.path()), 1);
  }
}

// Each process saves alone.
TEST(KilledSaves, OfSeveralRanksToOneFolderLeaveItWhole) {
  const TempFolder temp;
  const auto to_folder = [&](int rank, std::int64_t number) {
    distributed_checkpoint::save(save_of(rank, number).as_dict(), temp.path(),
                                 {.no_dist = true, .sync = number % 4 == 0});
  };
  kill_savers(temp.path(), to_folder, [&] { return Value(distributed_checkpoint::load(temp.path())); });
  EXPECT_EQ(files_in(temp.path()), 2);  // the metadata and one file of data
}

}  // namespace
}  // namespace lockstep::testing
