// SPDX-License-Identifier: BSD-3-Clause
// `lockstep recorder` on real ranks, which know nothing of it, and PyTorch's analyzer on its files.
#include <csignal>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/rendezvous/init.h>

#include "base/deadline.h"
#include "observe/find_runs.h"
#include "observe/recorder_files.h"
#include "observe/verdict.h"
#include "support/python.h"
#include "support/ranks.h"
#include "tool_program.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using observe::Cause;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Recorder : public testing::ToolProgram {
 protected:
  Recorder() : ToolProgram("recorder") {}

  // What PyTorch's analyzer finds in a folder, a line for each collective.
  static std::vector<std::string> torchfrtrace(const std::string& folder) {
    return testing::lines_of(testing::run_python("tools/torchfrtrace.py", {.args = {folder}}));
  }

  // The ranks once `is_so(run)`, or as they are after 30 s.
  template <typename Condition>
  static observe::Run wait_until(int pid, Condition is_so) {
    const Deadline deadline(30s);
    while (true) {
      const auto run = ranks_of(pid);
      if ((!run.ranks.empty() && is_so(run)) || deadline.expired()) return run;
      std::this_thread::sleep_for(20ms);
    }
  }

  // The ranks' verdict once it is `cause`.
  static observe::Verdict wait_for(Cause cause, int pid) {
    return observe::judge(
        wait_until(pid, [&](const auto& run) { return observe::judge(run).cause == cause; }));
  }

  static void end(const std::vector<int>& pids) {
    for (const int pid : pids) ::kill(pid, SIGKILL);
  }

 private:
  static observe::Run ranks_of(int pid) {
    try {
      return observe::find_run(std::to_string(pid)).read();
    } catch (const ArgumentError&) {
      return {};  // the ranks have not met yet
    }
  }
};

[[noreturn]] void run_own_code() {
  while (true) ::pause();
}

const testing::Scenario is_late("recorder: rank 1 makes no second call", [] {
  const auto context = init({.backend = "shm", .timeout = 60s});
  context.barrier();
  if (context.rank() == 1) run_own_code();
  auto x = torch::ones({4});
  context.group().all_reduce(x);
});

TEST_F(Recorder, NamesALateRankFromOutside) {
  const auto folder = file("dump");
  testing::run_ranks(
      is_late, {.while_running = [&](const std::vector<int>& pids) {
        const auto verdict = wait_for(Cause::missing, pids[0]);
        EXPECT_THAT(verdict.ranks, ElementsAre(1)) << verdict.text;
        const auto result = run({"analyze", std::to_string(pids[1])});
        EXPECT_EQ(result.code, 1) << result.err;
        EXPECT_THAT(
            result.out,
            ContainsRegex("^rank 1 \\(pid [0-9]+\\) has not entered all_reduce #2 of Float\\[4\\] at "
                          "recorder_test.cpp:[0-9]+ of group .*, for which rank 0 has waited [0-9.]+ "
                          "s. It runs the program's own code \\(its thread sleeps.*\\); its last call "
                          "was barrier #1 at recorder_test.cpp:"));
        EXPECT_THAT(expect_success({"dump", std::to_string(pids[0]), "--out", folder}),
                    AllOf(HasSubstr("rank_0\n"), HasSubstr("rank_1\n")));
        end(pids);
      }});
  EXPECT_THAT(torchfrtrace(folder), ElementsAre("c10d:barrier #1", "c10d:all_reduce #2 missing [1]"));
  const auto report = nlohmann::json::parse(run({"analyze", folder, "--json"}).out);
  EXPECT_EQ(report["verdict"]["cause"], "missing");
  EXPECT_EQ(report["verdict"]["ranks"], nlohmann::json({1}));
}

TEST_F(Recorder, ARankThatWasStoppedStaysStopped) {
  testing::run_ranks(
      is_late, {.while_running = [&](const std::vector<int>& pids) {
        (void)wait_for(Cause::missing, pids[0]);
        ::kill(pids[1], SIGSTOP);
        EXPECT_THAT(wait_for(Cause::stopped, pids[0]).ranks, ElementsAre(1));
        const auto stays = [](const auto& run) {  // but for the moments in which a tool reads its stack
          return run.ranks[1].life == observe::Life::stopped;
        };
        EXPECT_TRUE(stays(wait_until(pids[1], stays)));
        ::kill(pids[0], SIGSTOP);  // it would end with an error at once
        ::kill(pids[1], SIGKILL);
        EXPECT_THAT(wait_for(Cause::dead, pids[0]).ranks, ElementsAre(1));
        end(pids);
      }});
}

const testing::Scenario times_out("recorder: rank 0 waits too long", [] {
  const auto context = init({.backend = "shm", .timeout = 20s});
  context.barrier();
  if (context.rank() == 1) run_own_code();
  auto x = torch::ones({4});
  context.group().all_reduce_async(x).wait(1s);
});

TEST_F(Recorder, ATimeoutWritesTheFilesOfAllRanksOfTheHost) {
  const auto folder = file("at timeout");
  const auto results =
      testing::run_ranks(times_out, {.env = {{observe::kRecorderVariable, folder}}, .stuck = {1}});
  EXPECT_EQ(results[0].exit_code, 1) << results[0].err;
  EXPECT_THAT(results[0].err, HasSubstr("did not finish in time"));
  EXPECT_THAT(run({"analyze", folder}).out, HasSubstr("rank 1 (pid"));
  EXPECT_THAT(torchfrtrace(folder), ElementsAre("c10d:barrier #1", "c10d:all_reduce #2 missing [1]"));
}

TEST_F(Recorder, ASignalWritesTheFilesOfAStuckRankToo) {
  const auto folder = file("at a signal");
  testing::run_ranks(is_late,
                     {.env = {{observe::kRecorderVariable, folder}, {"LOCKSTEP_RECORDER_SIGNAL", "SIGUSR2"}},
                      .while_running = [&](const std::vector<int>& pids) {
                        EXPECT_EQ(wait_for(Cause::missing, pids[0]).cause, Cause::missing);
                        ::kill(pids[1], SIGUSR2);  // it runs its own code
                        const auto files = [&] {
                          return std::filesystem::exists(folder + "/rank_0") &&
                                 std::filesystem::exists(folder + "/rank_1");
                        };
                        const Deadline deadline(30s);
                        while (!files() && !deadline.expired()) std::this_thread::sleep_for(10ms);
                        end(pids);
                      }});
  EXPECT_THAT(torchfrtrace(folder), ElementsAre("c10d:barrier #1", "c10d:all_reduce #2 missing [1]"));
}

TEST_F(Recorder, ASignalThatCannotBeUsedIsRefused) {
  const auto refusal = [&](std::map<std::string, std::string> env) {
    return testing::run_ranks(is_late, {.world_size = 1, .env = std::move(env)})[0].err;
  };
  EXPECT_THAT(refusal({{"LOCKSTEP_RECORDER_SIGNAL", "SIGKILL"}, {observe::kRecorderVariable, "x"}}),
              HasSubstr("\"SIGKILL\" is not a signal that can be used; use SIGUSR1 or SIGUSR2"));
  EXPECT_THAT(refusal({{"LOCKSTEP_RECORDER_SIGNAL", "SIGUSR1"}}), HasSubstr("needs LOCKSTEP_RECORDER_DIR"));
}

const testing::Scenario differs("recorder: rank 1 makes another call", [] {
  const auto context = init({.backend = "shm", .timeout = 60s});
  context.barrier();
  auto x = torch::ones({4});
  try {
    context.rank() == 1 ? context.group().broadcast(x, 0) : context.group().all_reduce(x);
  } catch (const DesyncError&) {
    run_own_code();
  }
});

TEST_F(Recorder, NamesTheRanksOfAMismatch) {
  const auto folder = file("mismatch");
  testing::run_ranks(
      differs, {.while_running = [&](const std::vector<int>& pids) {
        const auto verdict = wait_for(Cause::mismatch, pids[0]);
        EXPECT_THAT(verdict.text,
                    AllOf(HasSubstr("rank 0 made all_reduce #2 of Float[4] at recorder_test.cpp:"),
                          HasSubstr("but rank 1 made broadcast #2 of Float[4]")));
        (void)wait_until(pids[0], [](const auto& run) {  // the calls end later than they differ
          return std::ranges::all_of(run.ranks, [](const auto& rank) { return rank.groups[0].failed == 2; });
        });
        expect_success({"dump", std::to_string(pids[0]), "--out", folder});
        end(pids);
      }});
  EXPECT_THAT(torchfrtrace(folder),
              ElementsAre("c10d:barrier #1", "c10d:all_reduce #2 rank 1: COLLECTIVE_TYPE_MISMATCH"));
}

// Each kind of collective, with equal arguments on both ranks, which then pause.
const testing::Scenario makes_all_calls("recorder: all collectives", [] {
  const auto context = init({.backend = "shm", .timeout = 60s});
  const auto& group = context.group();
  auto x = torch::ones({4, 2});
  auto halves = torch::ones({8, 2});
  group.all_reduce(x);
  group.broadcast(x, 1);
  group.reduce(x, 0);
  group.all_gather_into_tensor(halves, x);
  group.reduce_scatter_tensor(x, halves);
  group.all_to_all_single(halves, torch::ones({8, 2}));
  context.barrier();
  run_own_code();
});

TEST_F(Recorder, PyTorchsAnalyzerFindsNoErrorInAHealthyRun) {
  const auto folder = file("healthy");
  testing::run_ranks(makes_all_calls, {.while_running = [&](const std::vector<int>& pids) {
                       const auto seen = wait_until(pids[0], [](const auto& run) {
                         return run.ranks.size() == 2 && std::ranges::all_of(run.ranks, [](const auto& rank) {
                                  return rank.groups[0].completed == 7;
                                });
                       });
                       EXPECT_EQ(observe::judge(seen).cause, Cause::none) << observe::judge(seen).text;
                       observe::write_recorder_files(seen, folder);
                       end(pids);
                     }});
  EXPECT_THAT(torchfrtrace(folder), ElementsAre("c10d:all_reduce #1", "c10d:broadcast #2", "c10d:reduce #3",
                                                "c10d:_all_gather_base #4", "c10d:_reduce_scatter_base #5",
                                                "c10d:all_to_all_single #6", "c10d:barrier #7"));
}

}  // namespace
}  // namespace lockstep
