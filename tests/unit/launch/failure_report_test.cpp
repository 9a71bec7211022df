// SPDX-License-Identifier: BSD-3-Clause
#include "launch/failure_report.h"

#include <csignal>
#include <ctime>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/host.h"
#include "launch/process_tree.h"
#include "launch/run_notes.h"
#include "unit/base/child.h"

namespace lockstep::launch {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(FailureReport, EndsWithTheRankThatFailedFirst) {
  const FailureReport report{.first = {.rank = 2, .pid = 77, .signal = SIGSEGV, .core_dumped = true},
                             .host = "box",
                             .restarts = 1,
                             .message = "ValueError: odd",
                             .log_file = "/logs/2",
                             .stderr_tail = {"oh", "no"},
                             .later = {{.rank = 3, .signal = SIGTERM}, {.rank = 1, .code = 1}},
                             .stopped = {0, 4}};
  EXPECT_THAT(
      report_lines(report, false),
      ElementsAre("last lines of rank 2's stderr:", "  oh", "  no", "rank 2 recorded: ValueError: odd",
                  "rank 2's whole stderr: /logs/2", "after that, rank 3 was killed by SIGTERM",
                  "after that, rank 1 exited with code 1", "then stopped: ranks 0, 4",
                  "rank 2 failed first: it was killed by SIGSEGV (core dumped); pid 77 on host box, "
                  "after 1 restart"));
}

TEST(FailureReport, NamesTheHardLimitOfCpuTime) {
  testing::Child child([] {
    const rlimit one_second{.rlim_cur = 1, .rlim_max = 1};
    ::setrlimit(RLIMIT_CPU, &one_second);
    const pid_t busy = ::fork();
    while (busy == 0) (void)::getppid();
    siginfo_t info{};
    ::waitid(P_PID, static_cast<id_t>(busy), &info, WEXITED | WNOWAIT);
    const auto ended = reap_ended_children(busy);
    if (ended.exits.size() != 1) return false;
    const auto last = report_lines({.first = ended.exits.front()}, false).back();
    return last.find("SIGKILL (its CPU time reached the hard limit of `ulimit -t`; raise it)") != last.npos &&
           last.find("memory") == last.npos;
  });
  EXPECT_TRUE(child.passed());
}

TEST(FailureReport, TheCpuTimeOfARankIsNotThatOfItsChildren) {
  testing::Child child([] {
    const rlimit one_second{.rlim_cur = 1, .rlim_max = 1};
    ::setrlimit(RLIMIT_CPU, &one_second);
    const pid_t rank = ::fork();
    if (rank == 0) {
      const pid_t busy = ::fork();
      timespec used{};
      while (busy == 0 && used.tv_nsec < 600'000'000) ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
      if (busy == 0) ::_exit(0);
      ::waitpid(busy, nullptr, 0);
      ::raise(SIGKILL);
    }
    siginfo_t info{};
    ::waitid(P_PID, static_cast<id_t>(rank), &info, WEXITED | WNOWAIT);
    const auto ended = reap_ended_children(rank);
    return ended.exits.size() == 1 && ended.exits.front().signal == SIGKILL && !ended.exits.front().cpu_limit;
  });
  EXPECT_TRUE(child.passed());
}

TEST(FailureReport, NamesAnAddressSpaceThatIsTooSmall) {
  testing::Child child([] {
    const rlimit little{.rlim_cur = 300 << 20, .rlim_max = 300 << 20};
    ::setrlimit(RLIMIT_AS, &little);
    const auto last = report_lines({.first = {.code = 127}, .host = host_name()}, false).back();
    return last.find("`ulimit -v` allows 300.0 MiB of address space") != last.npos;
  });
  EXPECT_TRUE(child.passed());
}

// The process below a wrapper, such as a shell, too.
TEST(FailureReport, SaysWhyTheLauncherItselfKilledTheRank) {
  FailureReport report{.first = {.rank = 2,
                                 .pid = 77,
                                 .signal = SIGKILL,
                                 .killed_for = "no progress for 60.2 s; --progress-timeout 60"},
                       .host = "box"};
  EXPECT_EQ(report_lines(report, false).back(),
            "rank 2 failed first: it was killed by SIGKILL from the launcher (no progress for 60.2 s; "
            "--progress-timeout 60); pid 77 on host box");
  EXPECT_EQ(nlohmann::json(report).get<FailureReport>().first.killed_for, report.first.killed_for);
  report.first.signal = 0;
  report.first.code = 137;
  EXPECT_THAT(headline(report),
              HasSubstr("exited with code 137 after SIGKILL from the launcher (no progress for 60.2 s;"));
  report.first.signal = SIGKILL;
  report.first.killed_for.clear();
  EXPECT_THAT(report_lines(report, false).back(), HasSubstr("did not send that SIGKILL"));
}

TEST(FailureReport, SaysThatTooFewRanksAreLeft) {
  const FailureReport report{
      .first = {.rank = 2, .pid = 77, .code = 3, .too_few = "which leaves 1 rank, fewer than --min-ranks 2"},
      .host = "box"};
  EXPECT_EQ(
      report_lines(report, false).back(),
      "rank 2 failed first: it exited with code 3, which leaves 1 rank, fewer than --min-ranks 2; pid 77 on host box");
  EXPECT_EQ(nlohmann::json(report).get<FailureReport>().first.too_few, report.first.too_few);
}

TEST(RunNotes, KeepTheLastReasonOfEachRankAndTheLastKills) {
  RunNotes notes;
  EXPECT_EQ(notes.kill_reason(7), "");
  notes.note_kill(7, std::string(1000, 'x'));
  EXPECT_EQ(notes.kill_reason(7), std::string(155, 'x'));
  notes.note_kill(7, "no progress");
  EXPECT_EQ(notes.kill_reason(7), "no progress");
  notes.note_kill(8, "slow");
  notes.withdraw_kill(8);
  EXPECT_EQ(notes.kill_reason(8), "");
  for (pid_t rank = 100; rank < 132; ++rank) notes.note_kill(rank, "slow");
  EXPECT_EQ(notes.kill_reason(7), "");
  EXPECT_EQ(notes.kill_reason(100), "slow");
}

TEST(FailureReport, ALostPeerAfterRanksThatFinishedLooksLikeUnevenData) {
  const FailureReport report{.first = {.rank = 0, .pid = 7, .code = 1},
                             .host = "box",
                             .stderr_tail = {"failed because another rank is gone"},
                             .lost_peer = true,
                             .finished = {1, 3}};
  EXPECT_THAT(report_lines(report, false),
              ElementsAre("last lines of rank 0's stderr:", "  failed because another rank is gone",
                          AllOf(HasSubstr("before that, ranks 1, 3 finished without an error. Unless they"),
                                HasSubstr("this looks like uneven data"), HasSubstr("join()")),
                          "rank 0 failed first: it exited with code 1; pid 7 on host box"));
  auto other = report;
  other.lost_peer = false;
  EXPECT_EQ(report_lines(other, false).size(), 3);
  other = report;
  other.stderr_tail = {"rank 0 gave up or died"};
  EXPECT_EQ(report_lines(other, false).size(), 3);
}

TEST(FailureReport, DoesNotRepeatWhatTheReaderHasSeen) {
  const FailureReport report{.first = {.rank = 2, .pid = 77, .code = 1},
                             .host = "box",
                             .log_file = "/logs/2",
                             .stderr_tail = {"oh"}};
  EXPECT_THAT(report_lines(report, true),
              ElementsAre("rank 2's whole stderr: /logs/2",
                          "rank 2 failed first: it exited with code 1; pid 77 on host box"));
}

TEST(FailureReport, ReportsMissingOutput) {
  const FailureReport report{.first = {.rank = 0, .pid = 7, .code = 3}, .host = "box"};
  EXPECT_THAT(report_lines(report, false),
              ElementsAre("rank 0 wrote nothing to stderr",
                          "rank 0 failed first: it exited with code 3; pid 7 on host box"));
}

TEST(FailureReport, SuggestsTheMemoryLimitAfterAForeignSigkill) {
  const FailureReport report{.first = {.rank = 0, .signal = SIGKILL}, .host = "box"};
  EXPECT_THAT(report_lines(report, false).back(), AllOf(HasSubstr("SIGKILL"), HasSubstr("memory")));
}

TEST(FailureReport, ReportsFailuresOutsideRanks) {
  const FailureReport report{.reason = "node 1 (b) was lost", .host = "b"};
  EXPECT_THAT(report_lines(report, false), ElementsAre("the run failed: node 1 (b) was lost"));
  EXPECT_EQ(exit_code(report), 1);
}

TEST(FailureReport, RecognizesALostPeer) {
  EXPECT_TRUE(
      reports_lost_peer({"x", "rank 1: all_reduce failed because another rank is gone: rank 0 died"}));
  EXPECT_TRUE(
      reports_lost_peer({"RuntimeError: [../gloo/pair.cc:534] Connection closed by peer [127.0.0.1]:3"}));
  EXPECT_FALSE(reports_lost_peer({"ValueError: the loss is nan"}));
  EXPECT_FALSE(reports_lost_peer({"botocore: Connection reset by peer"}));
}

TEST(FailureReport, IsAlsoJson) {
  const FailureReport report{.first = {.rank = 2, .local_rank = 0, .pid = 77, .signal = SIGSEGV},
                             .host = "box",
                             .time = 12.5,
                             .stderr_tail = {"bad \xff byte"}};
  const auto json = nlohmann::json::parse(report_json(report));
  EXPECT_EQ(json["message"]["message"], "rank 2 was killed by SIGSEGV");
  EXPECT_EQ(json["message"]["errorCode"], 139);
  EXPECT_EQ(json["message"]["extraInfo"]["timestamp"], "12");
  EXPECT_EQ(json["lockstep"]["first"]["signal_name"], "SIGSEGV");
  EXPECT_TRUE(json["lockstep"]["first"]["exit_code"].is_null());
}

TEST(FailureReport, ExitsLikeAShell) {
  EXPECT_EQ(exit_code(RankExit{.code = 7}), 7);
  EXPECT_EQ(exit_code(RankExit{.signal = SIGKILL}), 137);
}

TEST(Tail, KeepsTheLastLinesAndCutsLongOnes) {
  Tail tail;
  for (std::size_t i = 0; i < Tail::kLines + 5; ++i) tail.add(std::to_string(i));
  EXPECT_EQ(tail.lines().size(), Tail::kLines);
  EXPECT_EQ(tail.lines().front(), "5");
  tail.add(std::string(100'000, 'x'));
  EXPECT_LT(tail.lines().back().size(), Tail::kLineBytes + 10);
}

}  // namespace
}  // namespace lockstep::launch
