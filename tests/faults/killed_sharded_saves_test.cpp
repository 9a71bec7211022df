// SPDX-License-Identifier: BSD-3-Clause
// Ranks that are killed while all of them save their parts: what is on disk is the old checkpoint or the new
// one, whole, and a different number of ranks can load it.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <random>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "base/unique_fd.h"
#include "parity/sharded_tensors.h"
#include "support/temp_folder.h"

namespace lockstep::testing::killed_sharded_saves_test {
namespace {

namespace fs = std::filesystem;
constexpr int kKills = 150;
constexpr std::int64_t kRows = 60;
constexpr std::int64_t kColumns = 1000;

at::Tensor whole_at(std::int64_t step) {
  return torch::full({kRows, kColumns}, step) + torch::arange(kColumns);
}

Dict contents_of(std::int64_t step, int rank, int ranks) {
  return {{"rows", placed(whole_at(step), {ranks}, {rank}, {0})},
          {"blocks", in_blocks(whole_at(-step), 20, 300, rank, ranks)},
          {"same", torch::full({100}, step)},
          {"step", step}};
}

CheckpointManagerOptions options(bool async) {
  return {.keep_last = 2, .async_save = async, .sync = false, .writing = CheckpointWriting::every_rank};
}

// Goes on from what is there, and tells the number of each checkpoint that counts as written.
[[noreturn]] void save_until_killed(const fs::path& folder, int rank, int ranks, bool async, int told) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  try {
    const auto context = init({.backend = async ? "gloo" : "shm",
                               .init_method = "file://" + (folder / "meeting").string(),
                               .timeout = std::chrono::seconds(20),
                               .world_size = ranks,
                               .rank = rank});
    CheckpointManager manager(folder / "runs", options(async));
    auto contents = contents_of(0, rank, ranks);
    const auto from = manager.load_latest(contents);
    if (from && !equal(contents, contents_of(from->step, rank, ranks))) ::_exit(2);
    for (auto step = from ? from->step + 1 : 1;; ++step) {
      // Every third one is written a second time and replaces the first.
      for (int times = 0; times < (step % 3 == 0 ? 2 : 1); ++times) {
        manager.save(step, contents_of(step, rank, ranks), static_cast<double>(step % 7));
      }
      manager.wait();
      if (::write(told, &step, sizeof(step)) != sizeof(step)) ::_exit(1);
    }
  } catch (const Error&) {
    ::_exit(0);  // another rank is gone
  }
}

class Ranks {
 public:
  Ranks(const fs::path& folder, int ranks, bool async) {
    fs::remove(folder / "meeting");
    int ends[2];
    if (::pipe(ends) != 0) throw std::runtime_error("no pipe");
    for (int rank = 0; rank < ranks; ++rank) {
      pids_.push_back(::fork());
      if (pids_.back() == 0) {
        ::close(ends[0]);
        save_until_killed(folder, rank, ranks, async, ends[1]);
      }
    }
    ::close(ends[1]);
    told_.reset(ends[0]);
  }
  ~Ranks() {
    for (const auto pid : pids_) ::kill(pid, SIGKILL);
    for (const auto pid : pids_) ::waitpid(pid, nullptr, 0);
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  // Waits for the first checkpoint: the rendezvous takes a while.
  std::int64_t first_told() { return next_told().value_or(0); }

  void kill_one(std::size_t rank) { ::kill(pids_.at(rank), SIGKILL); }

  // The others end by themselves: none ends with anything but 0, or by the kill.
  std::int64_t wait_for_all(std::int64_t last) {
    while (const auto step = next_told()) last = std::max(last, *step);
    for (const auto pid : pids_) {
      int status = 0;
      ::waitpid(pid, &status, 0);
      const bool fine = WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 0;
      EXPECT_TRUE(fine) << "status " << status;
    }
    pids_.clear();
    return last;
  }

 private:
  std::optional<std::int64_t> next_told() {
    std::int64_t step = 0;
    if (::read(told_.get(), &step, sizeof(step)) != sizeof(step)) return std::nullopt;
    return step;
  }
  std::vector<pid_t> pids_;
  UniqueFd told_;
};

TEST(KilledShardedSaves, LeaveTheOldOrTheNewCheckpoint) {
  torch::set_num_threads(1);  // a fork has one thread
  const TempFolder temp;
  std::mt19937 random(11);
  int in_the_middle = 0;
  for (int kill = 0; kill < kKills; ++kill) {
    const int ranks = 1 + kill % 3;
    Ranks running(temp.path(), ranks, kill % 2 == 1);
    auto told = running.first_told();
    ASSERT_GT(told, 0) << "kill " << kill;
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 15'000));
    running.kill_one(random() % static_cast<unsigned>(ranks));
    told = running.wait_for_all(told);
    for (const auto& entry : fs::recursive_directory_iterator(temp.path() / "runs")) {
      if (entry.path().extension() == ".part") ++in_the_middle;
    }
    CheckpointManager manager(temp.path() / "runs", options(false));
    const auto latest = manager.load_latest();
    ASSERT_TRUE(latest) << "kill " << kill;
    const auto step = latest->info.step;
    ASSERT_GE(step, told) << "kill " << kill;
    // The newest checkpoint is complete: none was skipped.
    ASSERT_EQ(manager.checkpoints().back().step, step) << "kill " << kill;
    ASSERT_TRUE(equal(latest->contents["rows"], whole_at(step))) << "kill " << kill;
    ASSERT_TRUE(equal(latest->contents["blocks"], whole_at(-step))) << "kill " << kill;
    ASSERT_EQ(latest->contents["step"].as_int(), step) << "kill " << kill;
  }
  EXPECT_GT(in_the_middle, kKills / 20) << "hardly any kill hit a save";
}

}  // namespace
}  // namespace lockstep::testing::killed_sharded_saves_test
