// SPDX-License-Identifier: BSD-3-Clause
// `lockstep run --on-loss replace`: a rank that fails is started again alone.
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <signal.h>
#include <stdexcept>
#include <string>
#include <string_view>
#include <sys/stat.h>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "faults/launcher_nodes.h"
#include "support/launcher_process.h"
#include "support/temp_folder.h"

namespace lockstep::testing::launcher_replace_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

// Every rank tells its pid, the number of restarts and the inode of the run's memory. Without restarts, rank 0 then sets
// the phase, and the others go on when it has.
std::string script(const std::string& phase, const std::string& rest) {
  return fmt::format(
      "memory=$(stat -L -c %i /proc/self/fd/${{LOCKSTEP_RUN_MEMORY%%,*}});"
      "echo pid $$ of $RANK, restart $TORCHELASTIC_RESTART_COUNT, memory $memory;"
      "test $RANK.$TORCHELASTIC_RESTART_COUNT = 0.0 && {0} phase {1};"
      "until test \"$({0} phase)\" = \"phase {1}\"; do sleep 0.01; done; {2}",
      LAUNCHER_RANK_PROGRAM, phase, rest);
}

Words replacing(int max_restarts, Words more = {}) {
  more.insert(more.end(), {"--on-loss", "replace", "--max-restarts", std::to_string(max_restarts)});
  return more;
}

// Two ranks, with at most two replacements.
Words ranks_and_spares(int spares, const std::string& program, Words more = {}) {
  more = replacing(2, std::move(more));
  more.insert(more.begin(), {"run", "--nproc-per-node", "2", "--spares", std::to_string(spares)});
  more.insert(more.end(), {"--", LAUNCHER_RANK_PROGRAM, "become", "/bin/sh", "-c", program});
  return more;
}

// What a rank, with that many restarts, has told: "pid" or "memory".
std::uint64_t told(const LauncherProcess& launcher, const char* what, int rank, int restarts) {
  const std::regex line(fmt::format("pid ([0-9]+) of {}, restart {}, memory ([0-9]+)", rank, restarts));
  std::smatch match;
  if (!std::regex_search(launcher.out(), match, line))
    throw std::runtime_error(fmt::format("rank {} has told nothing with {} restarts", rank, restarts));
  return std::stoull(match[what == std::string_view("pid") ? 1 : 2]);
}

pid_t pid_of(const LauncherProcess& launcher, int rank, int restarts) {
  return static_cast<pid_t>(told(launcher, "pid", rank, restarts));
}

pid_t parent_of(pid_t pid) {
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  for (std::string word; status >> word;) {
    if (word == "PPid:" && status >> word) return std::stoi(word);
  }
  throw std::runtime_error(fmt::format("process {} has no parent", pid));
}

bool is_alive(pid_t pid) { return ::kill(pid, 0) == 0; }

// Whether a process has a file of that inode open.
bool is_open(std::uint64_t inode) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const auto is_it = [&](const fs::path& fd) {
    struct stat file {};
    return fd.string().find("/proc/self") == std::string::npos && ::stat(fd.c_str(), &file) == 0 &&
           file.st_ino == inode &&
           fs::read_symlink(fd, ignored).string().find("lockstep-run") != std::string::npos;
  };
  for (const auto& process : fs::directory_iterator("/proc")) {
    std::error_code ended;  // the process may end meanwhile
    for (fs::directory_iterator fd(process.path() / "fd", ended), end; !ended && fd != end;
         fd.increment(ended))
      if (is_it(fd->path())) return true;
  }
  return false;
}

TEST(LauncherReplace, StartsOnlyTheRankThatWasKilled) {
  LauncherProcess launcher(shell_ranks(3, script("running", "echo on; exec sleep 1000"), replacing(5)));
  launcher.wait_for("on\n", 3);
  ::kill(pid_of(launcher, 1, 0), SIGKILL);
  launcher.wait_for("on\n", 4);
  ::kill(pid_of(launcher, 1, 1), SIGSEGV);
  launcher.wait_for("on\n", 5);
  EXPECT_TRUE(is_alive(pid_of(launcher, 0, 0)) && is_alive(pid_of(launcher, 2, 0)) &&
              is_alive(pid_of(launcher, 1, 2)));
  EXPECT_EQ(told(launcher, "memory", 1, 2), told(launcher, "memory", 0, 0));
  launcher.send(SIGTERM);
  EXPECT_EQ(launcher.finish(), 128 + SIGTERM);
  EXPECT_THAT(
      launcher.err(),
      AllOf(HasSubstr("[lockstep] rank 1 was killed by SIGKILL; its replacement runs (1 of 5 restarts)\n"),
            HasSubstr("its replacement runs (2 of 5 restarts)\n"), Not(HasSubstr("failed first"))));
  EXPECT_THAT(launcher.out(), HasSubstr(fmt::format("[rank 1] pid {} of 1", pid_of(launcher, 1, 2))));
  launcher.wait_for_no_family();
}

// One of them because the other one does.
TEST(LauncherReplace, ReplacesSurvivorsThatFailToo) {
  LauncherProcess launcher(
      shell_ranks(2,
                  script("running",
                         "test $TORCHELASTIC_RESTART_COUNT = 0 || { echo on; exec sleep 1000; };"
                         "test $RANK = 1 && exit 3; echo failed because another rank is gone >&2; exit 1"),
                  replacing(2)));
  launcher.wait_for("on\n", 2);
  launcher.send(SIGTERM);
  EXPECT_EQ(launcher.finish(), 128 + SIGTERM);
  EXPECT_THAT(launcher.err(), AllOf(HasSubstr("rank 0 exited with code 1; its replacement runs"),
                                    HasSubstr("rank 1 exited with code 3; its replacement runs")));
}

TEST(LauncherReplace, StartsNoRankThatWasInterrupted) {
  LauncherProcess launcher(shell_ranks(2, script("running", "exit 75"), replacing(5)));
  EXPECT_EQ(launcher.finish(), 75);
  EXPECT_THAT(launcher.err(), AllOf(HasSubstr("the run was interrupted"), Not(HasSubstr("replacement"))));
  launcher.wait_for_no_family();
}

TEST(LauncherReplace, ReportsTheFailureWhenNoRestartIsLeft) {
  LauncherProcess launcher(shell_ranks(
      2, script("running", "test $RANK = 0 && exec sleep 1000; echo bad luck >&2; exit 7"), replacing(2)));
  EXPECT_EQ(launcher.finish(), 7);
  EXPECT_THAT(launcher.err(), HasSubstr("its replacement runs (2 of 2 restarts)"));
  EXPECT_THAT(last_line(launcher),
              AllOf(HasSubstr("rank 1 failed first: it exited with code 7"), HasSubstr("after 2 restarts")));
  launcher.wait_for_no_family();
}

TEST(LauncherReplace, StartsAllRanksAgainWithNewMemoryInOtherPhases) {
  for (const std::string phase : {"starting", "finished"}) {
    const auto count = "test $TORCHELASTIC_RESTART_COUNT = ";
    LauncherProcess launcher(
        shell_ranks(2,
                    fmt::format("{0}1 && {1} phase && exit 0; {2}", count, LAUNCHER_RANK_PROGRAM,
                                script(phase, "test $RANK = 0 && exec sleep 1000; exit 3")),
                    replacing(1)));
    EXPECT_EQ(launcher.finish(), 0) << launcher.err();
    EXPECT_THAT(launcher.out(),
                AllOf(HasSubstr("[rank 0] phase starting"), HasSubstr("[rank 1] phase starting")));
    EXPECT_THAT(launcher.err(),
                HasSubstr("rank 1 exited with code 3; restart 1 of 1; stopping the other ranks"));
  }
}

TEST(LauncherReplace, StartsNoRankAgainWhenTheRunIsToStop) {
  LauncherProcess launcher(
      shell_ranks(2, script("stopped", "test $RANK = 0 && exec sleep 1000; exit 3"), replacing(5)));
  EXPECT_EQ(launcher.finish(), 3);
  EXPECT_THAT(launcher.err(), AllOf(HasSubstr("no rank is replaced or started again"),
                                    Not(HasSubstr("its replacement")), Not(HasSubstr("restart 1 of"))));
  EXPECT_THAT(last_line(launcher), HasSubstr("rank 1 failed first: it exited with code 3"));
  launcher.wait_for_no_family();
}

TEST(LauncherReplace, CountsReplacementsAndRestartsTogether) {
  LauncherProcess launcher(
      shell_ranks(1,
                  fmt::format("case $TORCHELASTIC_RESTART_COUNT in 0) {0} phase running;; "
                              "1) {0} phase finished;; esac; exit 3",
                              LAUNCHER_RANK_PROGRAM),
                  replacing(2)));
  EXPECT_EQ(launcher.finish(), 3);
  EXPECT_THAT(launcher.err(), AllOf(HasSubstr("its replacement runs (1 of 2 restarts)"),
                                    HasSubstr("restart 2 of 2"), HasSubstr("after 2 restarts")));
}

TEST(LauncherReplace, ReplacesARankThatEndsBeforeTheOthersWithCodeZero) {
  const auto rest = fmt::format(
      "test $RANK$TORCHELASTIC_RESTART_COUNT = 10 && exit 0; test $RANK = 1 && {0} phase finished;"
      "until test \"$({0} phase)\" = \"phase finished\"; do sleep 0.01; done",
      LAUNCHER_RANK_PROGRAM);
  LauncherProcess launcher(shell_ranks(2, script("running", rest), replacing(1)));
  EXPECT_EQ(launcher.finish(), 0) << launcher.err();
  EXPECT_THAT(launcher.err(),
              HasSubstr("rank 1 exited with code 0 before the end of elastic::run(); its replacement runs"));
}

TEST(LauncherReplace, FailsWhenARankEndsBeforeTheOthersAndNoRestartIsLeft) {
  LauncherProcess launcher(
      shell_ranks(2, script("running", "test $RANK = 0 && exec sleep 1000; exit 0"), replacing(1)));
  EXPECT_EQ(launcher.finish(), 1);
  EXPECT_THAT(last_line(launcher), HasSubstr("rank 1 failed first: it exited with code 0 before the end"));
}

TEST(LauncherReplace, KillsWhatTheRankHasLeft) {
  const TempFolder folder;
  LauncherProcess launcher(shell_ranks(
      2,
      script("running",
             fmt::format("test $RANK = 0 && exec sleep 1000;"
                         "test $TORCHELASTIC_RESTART_COUNT = 1 &&"
                         "  {{ grep -qs sleep $(cat {0}) && exit 4; echo clean; exec sleep 1000; }};"
                         "sleep 1000 & echo /proc/$!/cmdline > {0}; kill -9 $$",
                         folder.file("left"))),
      replacing(1)));
  launcher.wait_for("clean");
  launcher.send(SIGTERM);
  EXPECT_EQ(launcher.finish(), 128 + SIGTERM) << launcher.err();
}

TEST(LauncherReplace, ContinuesTheLogFileOfTheRank) {
  const TempFolder folder;
  const TempFolder logs;
  LauncherProcess launcher(shell_ranks(
      2,
      script("running", fmt::format("case $RANK$TORCHELASTIC_RESTART_COUNT in"
                                    "  10) kill -9 $$;; 11) : > {0};; esac;"
                                    "until test -e {0}; do sleep 0.01; done; {1} phase finished >/dev/null",
                                    folder.file("replaced"), LAUNCHER_RANK_PROGRAM)),
      replacing(1, {"--log-dir", logs.path().string(), "--redirects", "3"})));
  EXPECT_EQ(launcher.finish(), 0) << launcher.err();
  const auto run = *std::filesystem::directory_iterator(logs.path());
  std::ifstream file(run.path() / "attempt_0/1/stdout.log");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  EXPECT_THAT(text, AllOf(HasSubstr("of 1, restart 0"), HasSubstr("of 1, restart 1")));
}

TEST(LauncherReplace, LeavesNoProcessAndNoMemoryWhenTheLauncherIsKilled) {
  LauncherProcess launcher(ranks_and_spares(2, script("running", "echo on; exec sleep 1000")));
  launcher.wait_for("on\n", 2);
  const auto memory = told(launcher, "memory", 0, 0);
  EXPECT_TRUE(is_open(memory));
  launcher.send(SIGKILL);
  launcher.finish();
  launcher.wait_for_no_family();
  EXPECT_FALSE(is_open(memory));
}

TEST(LauncherReplace, UsesSparesThatHaveBeenStarted) {
  LauncherProcess launcher(
      ranks_and_spares(1,
                       script("running",
                              "echo $RANK bound to $(grep Cpus_allowed_list /proc/$$/status | cut -f2).;"
                              "echo on; exec sleep 1000"),
                       {"--bind", "compact"}));
  for (int restarts = 0; restarts < 2; ++restarts) {
    launcher.wait_for("on\n", 2 + restarts);
    launcher.wait_for_family(5);  // launcher, guard, two ranks, a spare
    const auto before = launcher.family();
    ::kill(pid_of(launcher, 1, restarts), SIGKILL);
    launcher.wait_for("on\n", 3 + restarts);
    EXPECT_THAT(before, Contains(pid_of(launcher, 1, restarts + 1)));
  }
  launcher.send(SIGTERM);
  EXPECT_EQ(launcher.finish(), 128 + SIGTERM);
  launcher.wait_for_no_family();
  EXPECT_THAT(launcher.out(), HasSubstr("[rank 1] a spare waits\n"));
  EXPECT_THAT(launcher.err(),
              AllOf(HasSubstr("its replacement runs (2 of 2 restarts)"), Not(HasSubstr("a spare,"))));
  const std::regex binding("\\[rank 1\\] 1 bound to [^.]+");
  std::set<std::string> bindings;
  for (std::sregex_iterator at(launcher.out().begin(), launcher.out().end(), binding), end; at != end; ++at)
    bindings.insert(at->str());
  EXPECT_EQ(bindings.size(), 1U) << launcher.out();
}

TEST(LauncherReplace, GoesOnWithoutASpareThatDies) {
  LauncherProcess launcher(ranks_and_spares(1, script("running", "echo on; exec sleep 1000")));
  launcher.wait_for("on\n", 2);
  launcher.wait_for_family(5);
  const std::set<pid_t> others{launcher.pid(), parent_of(pid_of(launcher, 0, 0)), pid_of(launcher, 0, 0),
                               pid_of(launcher, 1, 0)};
  for (const pid_t pid : launcher.family()) {
    if (others.contains(pid)) continue;
    ::kill(pid, SIGKILL);
    while (is_alive(pid)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ::kill(pid_of(launcher, 0, 0), SIGKILL);
  launcher.wait_for("on\n", 3);
  EXPECT_EQ(launcher.family().size(), 4U);
  launcher.send(SIGTERM);
  EXPECT_EQ(launcher.finish(), 128 + SIGTERM);
  EXPECT_THAT(launcher.err(), AllOf(HasSubstr("was killed by SIGKILL; it is not started again\n"),
                                    HasSubstr("rank 0 was killed by SIGKILL; its replacement runs (1 of 2")));
}

// Before it gets SIGKILL: SIGTERM does not end this one.
TEST(LauncherReplace, EndsSparesWithTheRun) {
  const TempFolder folder;
  LauncherProcess launcher(shell_ranks(
      2,
      fmt::format("trap '' TERM; test -z \"$LOCKSTEP_SPARE\" || : > {0};"
                  "{2} become true; code=$?; test -z \"$LOCKSTEP_SPARE\" || {{ echo $code > {1}; exit; }};"
                  "until test -e {0}; do sleep 0.01; done",
                  folder.file("up"), folder.file("ended"), LAUNCHER_RANK_PROGRAM),
      replacing(1, {"--spares", "1", "--grace-period", "50"})));
  EXPECT_EQ(launcher.finish(), 0) << launcher.err();
  std::string code;
  std::getline(std::ifstream(folder.path() / "ended") >> std::ws, code);
  EXPECT_EQ(code, "0");
  EXPECT_EQ(launcher.err(), "");
}

// As in a rank of another run.
TEST(LauncherReplace, GivesNoMemoryOfAnotherRun) {
  const auto words = helper_ranks(1, "phase");
  LauncherProcess launcher(words, {.env = {{"LOCKSTEP_RUN_MEMORY", "77,78"}}});
  EXPECT_EQ(launcher.finish(), 0) << launcher.err();
  EXPECT_THAT(launcher.out(), HasSubstr("no phase"));
}

}  // namespace
}  // namespace lockstep::testing::launcher_replace_test
