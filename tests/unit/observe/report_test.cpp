// SPDX-License-Identifier: BSD-3-Clause
// What `lockstep run --report` keeps of a run, and its page.
#include <array>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/host.h"
#include "observe/private_file.h"
#include "observe/report/page.h"
#include "observe/report/redaction.h"
#include "problem_report.h"
#include "runs.h"
#include "support/error_of.h"
#include "support/temp_folder.h"

namespace lockstep::observe {
namespace {

using lockstep::testing::error_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::Not;
using ::testing::Pair;
using ::testing::SizeIs;

struct Sum {
  int total = 0;
  void merge(const Sum& later) { total += later.total; }
};

TEST(Thinned, JoinsNeighboursAndLosesNothing) {
  Thinned<Sum> series(8);
  for (int i = 0; i < 8; ++i) series.add({1});
  EXPECT_THAT(series.items(), SizeIs(8));
  EXPECT_EQ(series.width(), 1U);
  for (int i = 8; i < 1003; ++i) {
    series.add({1});
    int total = 0;
    for (const auto& item : series.items()) total += item.total;
    ASSERT_EQ(total, i + 1);
    ASSERT_THAT(series.items(), SizeIs(Le(8U)));
  }
  for (std::size_t i = 0; i + 1 < series.items().size(); ++i)
    EXPECT_EQ(series.items()[i].total, static_cast<int>(series.width()));
  series.set_limit(2);
  EXPECT_THAT(series.items(), SizeIs(Le(2U)));
}

TEST(Redaction, HidesWhatLooksLikeASecret) {
  EXPECT_THAT(redacted_words({"run", "--token=abc def", "--password", "p w", "--api-key", "k", "--lr", "0.1",
                              "--token-file", "/run/token", "HF_SECRET=x", "--export",
                              "A=1,WANDB_API_KEY=zz,B=2", "--token"}),
              ElementsAre("run", "--token=[redacted]", "--password", "[redacted]", "--api-key", "[redacted]",
                          "--lr", "0.1", "--token-file", "/run/token", "HF_SECRET=[redacted]", "--export",
                          "A=1,WANDB_API_KEY=[redacted],B=2", "--token"));
  EXPECT_EQ(redacted("export DB_PASSWORD='a b'; python train.py --auth-token 55 --epochs 3"),
            "export DB_PASSWORD='[redacted]'; python train.py --auth-token [redacted] --epochs 3");
  EXPECT_EQ(redacted("https://me:hunter2@host/x?token=5&n=1"),
            "https://me:[redacted]@host/x?token=[redacted]&n=1");
  EXPECT_EQ(redacted(R"({"apiKey": "abc", "n": 3})"), R"({"apiKey": "[redacted]", "n": 3})");
  EXPECT_EQ(redacted("Authorization: Bearer abc.def"), "Authorization: [redacted]");
  EXPECT_EQ(redacted("-H 'x-auth: Bearer abc'"), "-H 'x-auth: [redacted]'");
  EXPECT_EQ(redacted("upload ghp_0123456789abcdefghij done"), "upload [redacted] done");
  for (const char* harmless : {"--max-tokens 100", "tokenizer=bpe", "--keys=3", "monkey: 5", "a::b", "12:30",
                               "", "--compass 3", "rank 1 exited with code 7"}) {
    EXPECT_EQ(redacted(harmless), harmless);
  }
}

TEST(Redaction, LeavesLinesOfSourceFilesAndMembersOfClasses) {
  for (const char* place : {"has not entered all_reduce #2 of Float[4] at token_loader.cpp:42",
                            "two_pass.cpp:7", "src/auth.cpp:3:15: error", "(auth.cuh:12)", "secret.py:8.",
                            "#3 ByteToken::next(int) at pass.h:9", "Auth<int>::Token::of(x)"}) {
    EXPECT_EQ(redacted(place), place);
  }
  EXPECT_EQ(redacted("auth.cpp: abc"), "auth.cpp: [redacted]");
  EXPECT_EQ(redacted("auth.cpp:42abc"), "auth.cpp:[redacted]");
  EXPECT_EQ(redacted("token:42"), "token:[redacted]");
  EXPECT_EQ(redacted("token.cpp=42"), "token.cpp=[redacted]");
}

TEST(Redaction, PutsATildeForTheHomeFolder) {
  EXPECT_EQ(without_home("A=/home/ann/x:/home/ann B=/home/anna/x", "/home/ann/"), "A=~/x:~ B=/home/anna/x");
  EXPECT_EQ(without_home("/srv/root/x /root/root/x a-/root", "/root"), "/srv/root/x ~/root/x a-/root");
  EXPECT_EQ(without_home("-I/root/x file:///root", "/root"), "-I~/x file://~");
  EXPECT_EQ(without_home("/usr/lib", "/"), "/usr/lib");
  EXPECT_EQ(without_home("/usr/lib", ""), "/usr/lib");
}

TEST(Redaction, ShowsOnlyVariablesOfItsList) {
  EXPECT_THAT(
      shown_variables({"OMP_NUM_THREADS=4", "HOME=/root", "AWS_SECRET_ACCESS_KEY=x", "LOCKSTEP_SECRET=x",
                       "MASTER_ADDR=h", "NCCL_AUTH_TOKEN=t", "LOCKSTEP_LOG_LEVEL=debug", "broken",
                       "SLURM_JOB_USER=ann", "SLURM_JOB_ACCOUNT=lab", "SLURM_JOB_UID=1000",
                       "SLURM_JOB_GID=1000", "SLURM_ACCOUNT=lab", "SLURM_JOB_ID=7", "NCCL_JWT=x"}),
      ElementsAre(Pair("LOCKSTEP_LOG_LEVEL", "debug"), Pair("LOCKSTEP_SECRET", "[redacted]"),
                  Pair("MASTER_ADDR", "h"), Pair("NCCL_AUTH_TOKEN", "[redacted]"),
                  Pair("NCCL_JWT", "[redacted]"), Pair("OMP_NUM_THREADS", "4"), Pair("SLURM_JOB_ID", "7")));
}

TEST(PrivateFile, ReplacesOnlyRegularFiles) {
  const lockstep::testing::TempFolder folder;
  const auto file = folder / "file";
  write_private_file(file, "old");
  write_private_file(file, "new");
  EXPECT_EQ(first_line(file), "new");
  std::filesystem::create_symlink(file, folder / "link");
  std::filesystem::create_symlink(folder / "nothing", folder / "broken link");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  for (const char* name : {"link", "broken link", "pipe"}) {
    const auto kind = std::filesystem::symlink_status(folder / name).type();
    EXPECT_THAT(error_of<Error>([&] { write_private_file(folder / name, "x"); }),
                AllOf(HasSubstr(name), HasSubstr("which is not replaced; name a regular file")));
    EXPECT_EQ(std::filesystem::symlink_status(folder / name).type(), kind);
  }
  EXPECT_EQ(first_line(file), "new");
}

// A process that is no rank, as one that has ended meanwhile. Earlier tests may have made this one a rank.
TEST(ProblemReportOfARun, HasTheOtherSectionsIfOneCannotBeRead) {
  std::string command = "sleep", seconds = "60";
  std::array<char*, 3> words{command.data(), seconds.data(), nullptr};
  pid_t pid = 0;
  ASSERT_EQ(::posix_spawnp(&pid, command.c_str(), nullptr, nullptr, words.data(), environ), 0);
  const auto text = cli::text_of({.pids = {pid}});
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  EXPECT_THAT(text.line, HasSubstr(fmt::format("no run: that of pid {} was not read: ", pid)));
  EXPECT_THAT(text.sections,
              AllOf(HasSubstr("== Run ==\n" + text.line), HasSubstr("== Stacks ==\n"),
                    HasSubstr(fmt::format("== Command of pid {} ==\n", pid)), HasSubstr("sleep 60"),
                    HasSubstr(fmt::format("== Environment of pid {} ==\n", pid))));
}

// A rank whose steps take 1 ms each, in three phases, at `now`.
Progress progress_at(std::int64_t steps, std::int64_t step_time = 1'000'000) {
  Progress progress{.size = 8,
                    .began_at = testing::kNow,
                    .phase = Phase::forward,
                    .phase_since = testing::kNow + steps * step_time,
                    .steps = static_cast<std::uint64_t>(steps),
                    .samples = static_cast<std::uint64_t>(32 * steps)};
  const auto spent = [&](std::int64_t count) {
    PhaseTimes times{};
    times[1] = count * step_time / 2;
    times[2] = count * step_time / 4;
    times[3] = count * step_time / 4;
    return times;
  };
  progress.spent = spent(steps);
  for (auto number = std::max<std::int64_t>(1, steps - 63); number <= steps; ++number) {
    progress.last.push_back({.number = static_cast<std::uint64_t>(number),
                             .ended_at = testing::kNow + number * step_time,
                             .spent = spent(number),
                             .samples = static_cast<std::uint64_t>(32 * number)});
  }
  return progress;
}

Run run_at(std::int64_t steps, int ranks, std::int64_t step_time = 1'000'000) {
  Run run{.id = "job", .host = "node3", .taken_at = testing::kNow + steps * step_time};
  for (int rank = 0; rank < ranks; ++rank) {
    run.ranks.push_back({.rank = rank, .pid = 100 + rank, .thread = 100 + rank});
    run.ranks.back().progress = progress_at(steps, step_time);
  }
  return run;
}

nlohmann::json data_of(const std::string& page) {
  const std::string mark = "id=\"data\">";
  const auto begin = page.find(mark) + mark.size();
  return nlohmann::json::parse(page.substr(begin, page.find("</script>", begin) - begin));
}

TEST(History, TakesEachStepOfTheRingOnceAndSaysWhichItMissed) {
  History history;
  history.add(run_at(40, 2), {});
  history.add(run_at(100, 2), {});
  const auto& track = history.tracks().front();
  EXPECT_EQ(track.steps, 100U);
  EXPECT_THAT(track.points.items(), SizeIs(100));
  EXPECT_EQ(track.unseen_steps, 0U);
  EXPECT_EQ(track.points.items()[50].longest, 1'000'000);
  history.add(run_at(300, 2), {});  // the ring begins at 237
  EXPECT_EQ(track.unseen_steps, 136U);
  EXPECT_THAT(track.points.items(), SizeIs(164));
  EXPECT_EQ(track.points.items()[100].shortest, 0);  // of no step alone
  EXPECT_EQ(track.points.items()[100].spent[1], 237 * 500'000);
  EXPECT_EQ(track.points.items().back().samples, 9600U);
}

TEST(History, ShowsALongStepWhileItTakes) {
  History history;
  auto run = run_at(3, 1);
  history.add(run, {});
  run.taken_at += testing::kSecond;
  history.add(run, {});
  const auto& last = history.tracks().front().points.items().back();
  EXPECT_EQ(last.at, run.taken_at);
  EXPECT_EQ(last.spent[1], 3 * 500'000 + testing::kSecond);
  run.ranks[0].life = Life::dead;
  run.taken_at += testing::kSecond;
  history.add(run, {});
  EXPECT_EQ(history.tracks().front().points.items().back().at, last.at);
}

TEST(History, KeepsNumbersThatAreNotFinite) {
  History history;
  auto run = run_at(1, 1);
  run.ranks[0].progress->numbers = {{"loss", 2.5}};
  history.add(run, {});
  run = run_at(2, 1);
  run.ranks[0].progress->numbers = {{"loss", std::numeric_limits<double>::quiet_NaN()}};
  history.add(run, {});
  const auto& loss = history.tracks().front().numbers.at("loss").items();
  ASSERT_THAT(loss, SizeIs(2));
  EXPECT_EQ(loss[0].most, 2.5);
  EXPECT_EQ(loss[1].count, 0U);
  EXPECT_EQ(loss[1].not_finite, 1U);
}

TEST(History, CountsWhoArrivesLast) {
  History history;
  auto run = testing::run_of({{testing::member(0, 2, {testing::call(1, 9), testing::call(2, 8)}, true)},
                              {testing::member(1, 2, {testing::call(1, 8.5)}, false)}});
  history.add(run, {});
  history.add(run, {});
  EXPECT_EQ(history.collectives_seen(), 1U);
  run.ranks[1].groups[0] = testing::member(1, 2, {testing::call(1, 8.5), testing::call(2, 5)}, false);
  history.add(run, {});
  EXPECT_EQ(history.collectives_seen(), 2U);
  EXPECT_EQ(history.tracks()[0].last_arrivals, 0U);
  EXPECT_EQ(history.tracks()[1].last_arrivals, 2U);
  EXPECT_EQ(history.late_arrivals().back().late, 3 * testing::kSecond);
  EXPECT_THAT(history.late_arrivals().back().call, HasSubstr("all_reduce #2"));
}

TEST(History, JoinsEqualVerdicts) {
  History history;
  auto run = run_at(1, 2);
  const Verdict dead{.cause = Cause::dead, .ranks = {1}, .text = "rank 1 is dead"};
  history.add(run, dead);
  run.taken_at += testing::kSecond;
  history.add(run, dead);
  ASSERT_THAT(history.faults(), SizeIs(1));
  EXPECT_EQ(history.faults()[0].last - history.faults()[0].first, testing::kSecond);
  EXPECT_THAT(data_of(page_of({.history = history}))["faults"], SizeIs(1));
  // It ended as it should.
  EXPECT_THAT(data_of(page_of({.history = history, .ends = {{.rank = 1}}}))["faults"], SizeIs(0));
}

TEST(History, AsksForTheStacksOfALongStallOnce) {
  History history;
  auto run = run_at(1, 2);
  const Verdict missing{.cause = Cause::missing, .ranks = {1}, .text = "rank 1 is late"};
  history.add(run, missing);
  EXPECT_FALSE(history.lacks_stacks(run)) << "it may go on";
  run.taken_at += History::kHang;
  history.add(run, {});
  EXPECT_FALSE(history.lacks_stacks(run)) << "the rank makes calls again";
  history.add(run, missing);
  EXPECT_TRUE(history.lacks_stacks(run));
  // To read them has taken longer than a fault may be out of sight.
  run.taken_at += 10 * testing::kSecond;
  history.add_stacks("main in train", run.taken_at);
  run.taken_at += testing::kSecond;
  history.add(run, missing);
  EXPECT_FALSE(history.lacks_stacks(run));
  EXPECT_THAT(history.faults(), SizeIs(1));
  EXPECT_EQ(data_of(page_of({.history = history}))["faults"][0]["stacks"], "main in train");

  History of_slow;
  const Verdict slow{.cause = Cause::slow, .ranks = {1}, .text = "rank 1 is slow"};
  of_slow.add(run, slow);
  run.taken_at += History::kHang;
  of_slow.add(run, slow);
  EXPECT_FALSE(of_slow.lacks_stacks(run)) << "it makes steps";
}

TEST(Page, NoTextEndsItsElement) {
  History history;
  auto run = run_at(1, 1);
  const std::string evil = "</script><script>alert(1)</script>\x01\xff\"'<!--\xe2\x80\xa8";
  run.ranks[0].progress->numbers = {{evil, 1}};
  run.ranks[0].groups.push_back({.group = evil, .backend = evil, .bytes = 4});
  history.add(run, {.cause = Cause::missing, .ranks = {0}, .text = evil});
  const auto plain = page_of({.history = History()});
  const auto page = page_of({.history = history,
                             .title = evil,
                             .outcome = evil,
                             .attempts = {{.failure = {evil}}},
                             .ends = {{.text = evil}},
                             .command = {evil},
                             .facts = {{evil, evil}},
                             .environment = {{evil, evil}}});
  const auto count = [](const std::string& text, const std::string& part) {
    int found = 0;
    for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
    return found;
  };
  for (const char* part : {"<script", "</script", "<!--"})
    EXPECT_EQ(count(page, part), count(plain, part)) << part;
  EXPECT_THAT(page, Not(HasSubstr("\xff")));
  const std::string shown = "</script><script>alert(1)</script>\x01\xef\xbf\xbd\"'<!--\xe2\x80\xa8";
  const auto data = data_of(page);
  EXPECT_EQ(data["title"], shown);
  EXPECT_EQ(data["tracks"][0]["numbers"][0]["name"], shown);
  EXPECT_EQ(data["tracks"][0]["traffic"][0]["group"], shown);
  EXPECT_EQ(data["faults"][0]["text"], shown);
}

// Eight ranks with 50,000 steps of 20 ms, of which rank 5 is late, and of which rank 2 stands still for 40 s.
History long_history() {
  History history;
  constexpr std::int64_t kStep = 20'000'000;
  constexpr std::int64_t kStill = 30'000;
  for (std::int64_t steps = 25; steps <= 50'000; steps += 25) {
    auto run = run_at(steps, 8, kStep);
    Verdict verdict;
    for (auto& rank : run.ranks) {
      auto& progress = *rank.progress;
      const auto wave = std::sin(static_cast<double>(steps) / 2000 + rank.rank);
      progress.numbers = {{"loss", 4 * std::exp(-static_cast<double>(steps) / 15'000) + 0.05 * wave},
                          {"learning rate", 1e-3 * (1 - static_cast<double>(steps) / 50'000)},
                          {"accuracy", 1 - std::exp(-static_cast<double>(steps) / 20'000) + 0.02 * wave}};
      progress.memory = {{.at = run.taken_at, .resident = (900 + rank.rank * 20 + steps / 200) << 20U}};
      progress.gathered = (std::int64_t{64} + steps % 50) << 20U;
      const auto change = [&](PhaseTimes& spent, std::int64_t until) {
        const auto data = rank.rank == 5 ? until * 3'000'000 : 0;
        spent[3] -= data;
        spent[4] += data;
        if (steps > kStill) spent[rank.rank == 2 ? 0 : 3] += 40 * testing::kSecond;
      };
      for (auto& step : progress.last) {
        change(step.spent, static_cast<std::int64_t>(step.number));
        if (steps > kStill) step.ended_at += 40 * testing::kSecond;
      }
      change(progress.spent, steps);
      const auto age = rank.rank == 5 ? 0.002 : 0.006;
      auto call = testing::call(static_cast<std::uint64_t>(steps), age);
      call.issued_at += run.taken_at - testing::kNow;
      call.contents = "gradients of bucket 2";
      rank.groups = {testing::member(rank.rank, 8, {call}, false)};
      rank.groups[0].backend = "shm";
      rank.groups[0].bytes = static_cast<std::uint64_t>(steps) << 22U;
    }
    if (steps > kStill) run.taken_at += 40 * testing::kSecond;
    history.add(run, verdict);
    if (steps != kStill) continue;
    for (int second = 2; second < 40; ++second) {
      run.taken_at += testing::kSecond;
      for (auto& rank : run.ranks)
        rank.progress->phase = rank.rank == 2 ? Phase::other : Phase::communication;
      history.add(run, {.cause = Cause::missing,
                        .ranks = {2},
                        .text = fmt::format(
                            "rank 2 (pid 102) has not entered all_reduce #30001 of Float[25557032] at "
                            "train.cpp:40 (gradients of bucket 2) of group default, for which ranks 0, "
                            "1, 3, 4, 5, 6 and 7 have waited {}.0 s. It runs the program's own code "
                            "(its thread sleeps in read, called from libc.so.6+0x85f16).",
                            second)});
      if (history.lacks_stacks(run)) {
        history.add_stacks(
            "rank 2 (pid 102): in the program's own code\n    read in libc.so.6\n    Loader::read(Batch&) at "
            "loader.cpp:22\n    main at train.cpp:38\n",
            run.taken_at);
      }
    }
  }
  return history;
}

// With LOCKSTEP_REPORT_PAGE=FILE it writes the page, which `scripts/nightly.sh report` opens in a browser.
TEST(Page, OfEightRanksAndFiftyThousandStepsIsSmall) {
  const auto history = long_history();
  for (const auto& track : history.tracks())
    EXPECT_THAT(track.points.items(), SizeIs(Le(History::kMostItems)));
  Report report{
      .history = history,
      .title = "Run on node3",
      .outcome = "Rank 2 was killed by SIGKILL after 1040.0 s; the run failed with exit code 137.",
      .failed = true,
      .began = 1'700'000'000,
      .began_at = testing::kNow - testing::kSecond,
      .seconds = 1042.5,
      .attempts = {{.time = 1'700'000'000.8,
                    .ranks = 8,
                    .failure = {"then stopped: ranks 0, 1, 3, 4, 5, 6, 7",
                                "rank 2 failed first: it was killed by SIGKILL; pid 102 on host node3"}}},
      .command = {"lockstep", "run", "--nproc-per-node", "8", "--report", "report.html", "--", "./train",
                  "--lr", "0.1", "--token", "[redacted]"},
      .facts = {{"Lockstep", "1.0"}, {"LibTorch", "2.15.0+cpu"}, {"Host", "node3"}},
      .environment = {{"OMP_NUM_THREADS", "4"}},
      .period = 0.5,
      .looks = 2085,
      .processor_seconds = 2.5};
  for (int rank = 0; rank < 8; ++rank)
    report.ends.push_back({.rank = rank,
                           .pid = 100 + rank,
                           .time = 1'700'001'041.0 + (rank == 2 ? 0 : 0.5),
                           .text = rank == 2 ? "was killed by SIGKILL" : "was killed by SIGTERM",
                           .failed = true,
                           .was_stopped = rank != 2});
  const auto page = page_of(report);
  EXPECT_LT(page.size(), 5'000'000U);
  const auto data = data_of(page);
  EXPECT_THAT(data["tracks"], SizeIs(8));
  std::int64_t steps = 0;
  for (const auto& step : data["tracks"][3]["points"]["steps"]) steps += step.get<std::int64_t>();
  EXPECT_EQ(steps, 50'000);
  if (const char* const file = std::getenv("LOCKSTEP_REPORT_PAGE")) write_private_file(file, page);
}

}  // namespace
}  // namespace lockstep::observe
