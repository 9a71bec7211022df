// SPDX-License-Identifier: BSD-3-Clause
// Programs of examples/ that run well raise no alarm. LOCKSTEP_HEALTHY_MINUTES=60 for all of them for an hour.
#include <atomic>
#include <fstream>
#include <iostream>
#include <map>
#include <random>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/deadline.h"
#include "base/env.h"
#include "observe/find_runs.h"
#include "observe/verdict.h"
#include "support/launcher_process.h"
#include "support/temp_folder.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using observe::Cause;
using testing::LauncherProcess;
using Words = std::vector<std::string>;

// Judges a run every half second while it lives.
class Watcher {
 public:
  explicit Watcher(pid_t launcher) : thread_([this, launcher] { watch(launcher); }) {}
  ~Watcher() {
    is_over_ = true;
    thread_.join();
  }
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  int looks() const { return looks_; }

 private:
  void watch(pid_t launcher) {
    while (!is_over_) {
      std::this_thread::sleep_for(500ms);
      try {
        const auto verdict = observe::judge(observe::find_run(std::to_string(launcher)).read());
        ++looks_;
        EXPECT_EQ(verdict.cause, Cause::none) << verdict.text;
      } catch (const ArgumentError&) {  // before the ranks have met, and at the end
      }
    }
  }

  std::atomic<bool> is_over_{false};
  std::atomic<int> looks_{0};
  std::thread thread_;
};

class HealthyPrograms : public ::testing::Test {
 protected:
  // With so many times the work of a short run. The programs refuse a folder with checkpoints.
  static std::vector<Words> programs(int times, const testing::TempFolder& folder) {
    const auto text = folder.file("text");
    std::ofstream(text) << std::string(20'000, 'a') + "the quick brown fox jumps over the lazy dog. ";
    return {
        {"gpt", "--text", text, "--steps", std::to_string(100 * times), "--context", "32", "--layers", "2",
         "--width", "32", "--batch-size", "4"},
        {"gpt_mesh", "--text", text, "--mesh", "1,2,1", "--steps", std::to_string(60 * times), "--context",
         "32", "--folder", folder.file("mesh")},
        {"point_clouds", "--epochs", std::to_string(times), "--points", "64", "--run", folder.file("clouds")},
        {"image_folder_finetune", "--folder", folder.file("pictures"), "--size", "32", "--epochs",
         std::to_string(2 * times), "--run", folder.file("finetune")},
        {"spawn_mnist", "--nprocs", "2", "--random", "2000", "--epochs", std::to_string(3 * times), "--run",
         folder.file("mnist")}};
  }

  // Returns how often it was judged.
  static int watch(const Words& words) {
    Words command{"run", "--nproc-per-node", "2", std::string(PROGRAM_FOLDER) + "/" + words.front()};
    command.insert(command.end(), words.begin() + 1, words.end());
    const bool is_alone = words.front() == "spawn_mnist";
    LauncherProcess::Options options{.watchdog = 600s};
    if (is_alone) options.program = command[3];
    LauncherProcess launcher(is_alone ? Words(words.begin() + 1, words.end()) : command, options);
    const Watcher watcher(launcher.pid());
    EXPECT_EQ(launcher.finish(), 0) << words.front() << '\n' << launcher.out() << launcher.err();
    return watcher.looks();
  }
};

TEST_F(HealthyPrograms, RaiseNoAlarm) {
  const auto minutes = Env().get_int("LOCKSTEP_HEALTHY_MINUTES").value_or(0);
  if (minutes == 0) {  // one of them in each run of the tests
    const testing::TempFolder folder;
    const auto words = programs(1, folder).at(std::random_device{}() % 5);
    SCOPED_TRACE(words.front());
    watch(words);
    return;
  }
  const Deadline deadline(std::chrono::minutes{minutes});
  std::map<std::string, int> looks;
  while (!deadline.expired()) {
    const testing::TempFolder folder;
    for (const auto& words : programs(4, folder)) {
      SCOPED_TRACE(words.front());
      looks[words.front()] += watch(words);
    }
  }
  for (const auto& [name, count] : looks) std::cout << fmt::format("{}: judged {} times\n", name, count);
}

}  // namespace
}  // namespace lockstep
