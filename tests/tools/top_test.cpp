// SPDX-License-Identifier: BSD-3-Clause
// `lockstep top` on real ranks, which know nothing of it.
#include <csignal>
#include <regex>
#include <unistd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <lockstep/rendezvous/init.h>

#include "base/deadline.h"
#include "base/host.h"
#include "base/rank_progress.h"
#include "support/launcher_process.h"
#include "support/ranks.h"
#include "tool_program.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class Top : public testing::ToolProgram {
 protected:
  Top() : ToolProgram("top") {}

  // The output of `lockstep top --once` once it matches; it fails until the ranks have met.
  Result once(int pid, const ::testing::Matcher<std::string>& shown, const Words& more = {}) const {
    Words words{std::to_string(pid), "--once"};
    words.insert(words.end(), more.begin(), more.end());
    const Deadline deadline(30s);
    Result result = run(words);
    while (!shown.Matches(result.out) && !deadline.expired()) result = run(words);
    EXPECT_THAT(result.out, shown) << result.err;
    return result;
  }

  static void end(const std::vector<int>& pids) {
    for (const int pid : pids) ::kill(pid, SIGKILL);
  }
};

// Three steps; then rank 0 waits for rank 1, whose name of a number and of a group would clear the screen.
const testing::Scenario waits_for_a_batch("top: rank 1 waits for a batch", [] {
  const auto context = init({.backend = "shm", .timeout = 40s});
  auto& progress = *current_progress();
  claim_phases(progress);
  for (std::uint64_t step = 1; step <= 3; ++step) {
    context.barrier();
    progress.samples += 8;
    count_step(progress, step);
  }
  report_number("loss\x1b[2J", 0.25);
  if (context.rank() == 1) {
    const PhaseScope phase(Phase::data);
    const ReadingScope reading("/data/x.jpg");
    while (true) ::pause();
  }
  auto x = torch::ones({4});
  const PhaseScope phase(Phase::communication);
  context.group().all_reduce(x);
});

TEST_F(Top, OnceIsATableForPeopleAndJsonForScripts) {
  testing::run_ranks(
      waits_for_a_batch, {.while_running = [&](const std::vector<int>& pids) {
        const auto text = once(pids[0], HasSubstr("rank 1 (pid"));
        EXPECT_EQ(text.code, 1);
        EXPECT_THAT(
            text.out,
            AllOf(ContainsRegex("run.* on .*: 2 ranks, "), HasSubstr("RANK     PID STATE"),
                  ContainsRegex("\n   0 +[0-9]+ comm .* 3 .*all_reduce #4 of Float\\[4\\] at "
                                "top_test.cpp:[0-9]+ of group .* \\(shm\\), 16 B, for "),
                  ContainsRegex("\n   1 +[0-9]+ data .* 3 "), HasSubstr("last to enter barrier #3 of group"),
                  HasSubstr("loss\\x1b[2J 0.25"), Not(HasSubstr("\x1b"))));
        const auto json = nlohmann::json::parse(run({std::to_string(pids[1]), "--once", "--json"}).out);
        EXPECT_EQ(json["verdict"]["ranks"], nlohmann::json({1}));
        EXPECT_EQ(json["ranks"][1]["progress"]["reading"], "/data/x.jpg");
        EXPECT_EQ(json["ranks"][1]["progress"]["steps"], 3);
        EXPECT_GT(json["figures"]["ranks"][1]["resident"], 1 << 20);
        EXPECT_GT(json["figures"]["ranks"][1]["pss"], 1 << 20);
        EXPECT_EQ(json["figures"]["ranks"][0]["call"]["bytes"], 16);
        EXPECT_TRUE(json["figures"]["bytes_per_second"].contains("shm"));
        EXPECT_THAT(run({std::to_string(pids[1]), "--once", "--hosts"}).err,
                    HasSubstr("--hosts: no launcher of several nodes is above the ranks of this run"));
        end(pids);
      }});
}

#ifdef LOCKSTEP_WITH_NCURSES

// `lockstep top` in a terminal, whose settings are written before and after.
class Screen {
 public:
  explicit Screen(int pid, const std::string& type = "xterm")
      : shell_({"-c", "stty -g; \"$0\" top $1 --interval 0.1; echo code $?; stty -g", LOCKSTEP_PROGRAM,
                std::to_string(pid)},
               {.env = {{"TERM", type}}, .output = testing::Output::terminal, .program = "/bin/sh"}) {
    shell_.wait_for("STATE");
  }

  void wait_for(const std::string& text) { shell_.wait_for(text); }
  void press(const std::string& keys, const std::string& shown) {
    shell_.type(keys);
    shell_.wait_for(shown);
  }
  void type(const std::string& keys) const { shell_.type(keys); }
  void send(int signal) const {
    for (const pid_t pid : shell_.family()) {
      if (first_line(fmt::format("/proc/{}/comm", pid)) == "lockstep") ::kill(pid, signal);
    }
  }
  // What stands on the terminal in the end. Its settings are those before, and the screen is the former one.
  std::string finish() {
    shell_.finish();
    const auto& out = shell_.out();
    const std::regex settings("[0-9a-f]+(:[0-9a-f]+){10,}");
    const std::vector<std::string> found(std::sregex_token_iterator(out.begin(), out.end(), settings), {});
    EXPECT_EQ(found.size(), 2U) << out;
    EXPECT_EQ(found.front(), found.back());
    const auto restored = out.rfind("\x1b[?1049l");
    EXPECT_NE(restored, std::string::npos);
    return out.substr(restored);
  }

 private:
  testing::LauncherProcess shell_;
};

TEST_F(Top, TheScreenReactsToKeysAndRestoresTheTerminal) {
  testing::run_ranks(
      waits_for_a_batch, {.while_running = [&](const std::vector<int>& pids) {
        once(pids[0], HasSubstr("rank 1 (pid"));
        Screen left(pids[0]);
        left.wait_for("all_reduce #4");
        left.press("h", "percent of the time");
        left.press("hjc", "calls of rank 1");
        left.press("s", "stack of rank 1");
        left.type("q");
        EXPECT_THAT(left.finish(), AllOf(HasSubstr("code 0"), Not(HasSubstr("ended"))));
        testing::LauncherProcess colourless(
            {"top", std::to_string(pids[0]), "--interval", "0.1"},
            {.env = {{"TERM", "vt100"}}, .output = testing::Output::terminal});
        colourless.wait_for("all_reduce #4");
        colourless.type("q");
        EXPECT_EQ(colourless.finish(), 0);
        EXPECT_THAT(colourless.out(), Not(ContainsRegex("\x1b\\[([0-9]*;)*3[0-9]m")));
        Screen ended(pids[0]);
        ended.send(SIGTERM);
        EXPECT_THAT(ended.finish(), HasSubstr("code 0"));
        Screen last(pids[1], "screen");
        end(pids);
        EXPECT_THAT(last.finish(),
                    AllOf(ContainsRegex("The run has ended after 3 steps; without leaving it have ended: "
                                        "rank 0 \\(pid [0-9]+\\), rank 1 \\(pid [0-9]+\\)"),
                          HasSubstr("code 0")));
      }});
}

#endif

}  // namespace
}  // namespace lockstep
