// SPDX-License-Identifier: BSD-3-Clause
// Random harm to ranks and to the launcher at random moments: no hang, nothing left, the right cause named.
// LOCKSTEP_FAULT_ROUNDS=300 for a long run, LOCKSTEP_FAULT_SEED to see one round again.
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <random>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/env.h"
#include "support/launcher_process.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AnyOf;
using ::testing::HasSubstr;

struct RankHarm {
  const char* name;
  int code;           // of the launcher
  const char* named;  // in its last line, after the rank
};

constexpr std::array kRankHarms{
    RankHarm{"exit", 7, "exited with code 7"},       RankHarm{"return", 7, "exited with code 7"},
    RankHarm{"throw", 134, "was killed by SIGABRT"}, RankHarm{"abort", 134, "was killed by SIGABRT"},
    RankHarm{"kill", 137, "was killed by SIGKILL"},  RankHarm{"term", 143, "was killed by SIGTERM"},
    RankHarm{"segv", 139, "was killed by SIGSEGV"},  RankHarm{"stop", 134, "was killed by SIGABRT"},
};
constexpr std::array kPlaces{"startup", "collective", "save"};

class Round {
 public:
  explicit Round(unsigned seed) : random_(seed) {}

  void play() {
    if (draw(4) == 0) {
      harm_the_launcher();
    } else {
      harm_a_rank();
    }
    EXPECT_TRUE(std::filesystem::is_empty(temporary_.path()))
        << "something was left among the temporary files";
  }

 private:
  int draw(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }

  LauncherProcess start(const std::string& harm, const std::string& where, int victim, int step) {
    return LauncherProcess({"run", "--nproc-per-node", "2", "--grace-period", "0.5", "--",
                            TRAINING_RANK_PROGRAM, "faulty", (folder_.path() / "checkpoints").string(),
                            std::to_string(victim), harm, where, std::to_string(step)},
                           {.env = {{"TMPDIR", temporary_.path().string()}, {"OMP_NUM_THREADS", "1"}}});
  }

  void harm_a_rank() {
    const RankHarm& harm = kRankHarms[static_cast<std::size_t>(draw(kRankHarms.size()))];
    const std::string where = kPlaces[static_cast<std::size_t>(draw(kPlaces.size()))];
    const int victim = draw(2);
    const int step = where == "startup" ? 0 : draw(12);
    SCOPED_TRACE(fmt::format("rank {}: {} in {}, step {}", victim, harm.name, where, step));
    auto launcher = start(harm.name, where, victim, step);
    const int code = launcher.finish();
    launcher.wait_for_no_family();
    const std::string last = lines_of(launcher.err()).back();
    EXPECT_EQ(code, harm.code) << launcher.err();
    // A stopped rank does nothing; the other gives up at its deadline and names the rank that it waited for.
    const bool stopped = std::string_view(harm.name) == "stop";
    EXPECT_THAT(last, HasSubstr(fmt::format("rank {} failed first: it {}", stopped ? 1 - victim : victim,
                                            harm.named)))
        << launcher.err();
    if (stopped) {
      EXPECT_THAT(launcher.err(), HasSubstr(fmt::format("rank {}", victim)));
    }
    if (std::string_view(harm.name) == "throw") {
      EXPECT_THAT(launcher.err(), HasSubstr("the planned exception"));
    }
  }

  void harm_the_launcher() {
    const int signal = std::array{SIGKILL, SIGTERM, SIGINT, SIGSTOP}[static_cast<std::size_t>(draw(4))];
    const bool at_start = draw(2) == 0;
    const bool guard = signal == SIGKILL && draw(2) == 0;
    SCOPED_TRACE(fmt::format("SIG{} to the {} {}", ::sigabbrev_np(signal), guard ? "guard" : "launcher",
                             at_start ? "at the start" : "in the run"));
    auto launcher = start("none", "nowhere", 0, 0);
    if (at_start) {
      std::this_thread::sleep_for(std::chrono::microseconds(draw(300'000)));
    } else {
      launcher.wait_for("met", 2);
      std::this_thread::sleep_for(std::chrono::microseconds(draw(20'000)));
    }
    if (guard) {
      kill_guard(launcher);
    } else {
      launcher.send(signal);
    }
    if (signal == SIGSTOP) launcher.send(SIGCONT);
    const int code = launcher.finish();
    // The run may have ended before the signal came.
    const int expected = signal == SIGKILL && !guard ? -SIGKILL : 128 + signal;
    // Or have come before the launcher handles it.
    const int unhandled = at_start && !guard ? -signal : expected;
    EXPECT_THAT(code, signal == SIGSTOP ? AnyOf(0, 0, 0) : AnyOf(0, expected, unhandled)) << launcher.err();
    launcher.wait_for_no_family();
  }

  static void kill_guard(const LauncherProcess& launcher) {
    for (const pid_t pid : launcher.family()) {
      if (parent_of(pid) == launcher.pid()) ::kill(pid, SIGKILL);
    }
  }

  std::mt19937 random_;
  TempFolder folder_;
  TempFolder temporary_;
};

TEST(LauncherRandomFaults, LeaveNothingAndAreNamed) {
  const Env env;
  const auto rounds = env.get_int("LOCKSTEP_FAULT_ROUNDS").value_or(30);
  const auto first = env.get_int("LOCKSTEP_FAULT_SEED").value_or(std::random_device()());
  for (std::int64_t i = 0; i < rounds && !::testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE(fmt::format("LOCKSTEP_FAULT_SEED={}", first + i));
    Round(static_cast<unsigned>(first + i)).play();
  }
}

}  // namespace
}  // namespace lockstep::testing
