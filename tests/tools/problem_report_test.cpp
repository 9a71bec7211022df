// SPDX-License-Identifier: BSD-3-Clause
// `lockstep doctor --report` on real ranks, on recorder files, and what it leaves out.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sys/stat.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/rendezvous/init.h>
#include <lockstep/version.h>

#include "base/deadline.h"
#include "base/host.h"
#include "observe/recorder_files.h"
#include "support/ranks.h"
#include "tool_program.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

[[noreturn, gnu::noinline]] void wait_for_ever_in_rank_1() {
  while (true) ::pause();
}

const testing::Scenario hangs("problem report: rank 1 makes no second call", [] {
  const auto context = init({.backend = "shm", .timeout = 100s});
  context.barrier();
  if (context.rank() == 1) wait_for_ever_in_rank_1();
  auto x = torch::ones({4});
  context.group().all_reduce(x);
});

class ProblemReport : public testing::ToolProgram {
 protected:
  ProblemReport() : ToolProgram("doctor") {}

  // The report of `doctor --report FILE <more>`.
  std::string report(const Words& more, std::map<std::string, std::string> env = {}) const {
    const auto name = file("report.txt");
    Words words{"doctor", "--report", name};
    words.insert(words.end(), more.begin(), more.end());
    testing::LauncherProcess process(words, {.env = std::move(env), .watchdog = 200s});
    EXPECT_LE(process.finish(), 1) << process.err();  // 1: this host has a problem
    EXPECT_THAT(process.err(), IsEmpty());
    EXPECT_THAT(process.out(),
                ContainsRegex("report.txt: [0-9]+ problems?, [0-9]+ warnings?, [0-9]+ ok. Read[^\n]*\n"
                              "run of [12] ranks?: [^\n]+\n$"));
    struct stat status {};
    EXPECT_EQ(::stat(name.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777U, 0600U);
    std::ifstream stream(name);
    return {std::istreambuf_iterator<char>(stream), {}};
  }

  // Until one of two ranks is named.
  static void wait_for_the_hang(const std::vector<int>& pids) {
    const Deadline deadline(60s);
    int code = 0;
    while (code != 1 && !deadline.expired()) {
      testing::LauncherProcess process({"recorder", "analyze", std::to_string(pids[0])});
      code = process.finish();
      if (process.out().find("has waited") == std::string::npos) code = 0;
    }
    EXPECT_EQ(code, 1);
  }

  static void end(const std::vector<int>& pids) {
    for (const int pid : pids) ::kill(pid, SIGKILL);
  }
};

const auto kNamesRank1 = ContainsRegex(
    "rank 1 \\(pid [0-9]+\\) has not entered all_reduce #2 of Float\\[4\\] at problem_report_test.cpp:[0-9]+");

TEST_F(ProblemReport, HasVersionsChecksAndWhatTheRanksOfARunDo) {
  testing::run_ranks(
      hangs, {.while_running = [&](const std::vector<int>& pids) {
        wait_for_the_hang(pids);
        const auto text = report({"--run", std::to_string(pids[0])});
        end(pids);
        EXPECT_THAT(text, AllOf(ContainsRegex("\nLockstep +" + version() + "\n"),
                                ContainsRegex("\nLibTorch +[0-9.]+"),
                                ContainsRegex("\nCompiler +[^\n]*[0-9]+\\.[0-9]+"),
                                ContainsRegex("\nKernel +Linux "), ContainsRegex("\nUsable cores +[0-9]+\n"),
                                ContainsRegex("\nMemory +[0-9]"), ContainsRegex("\nok +backend shm +built")));
        EXPECT_THAT(text, kNamesRank1);
        EXPECT_THAT(text, ContainsRegex("\n *RANK +PID "));
        EXPECT_THAT(text, ContainsRegex("ago  done +barrier #1 at problem_report_test"));
#ifdef LOCKSTEP_WITH_LIBDW
        EXPECT_THAT(text, ContainsRegex("own code\n(.|\n)*wait_for_ever_in_rank_1"));
#endif
      }});
}

TEST_F(ProblemReport, HasTheCommandAndTheEnvironmentOfARank) {
  // The ranks wait for a launcher that looks at them, which this one does not.
  testing::LauncherProcess launcher(
      {"run", "--nproc-per-node", "2", "--", LOCKSTEP_REPORT_RANK, "1", "-1", "--api-key=secret-of-the-rank",
       "--wait"},
      {.env = {{"NCCL_AUTH_TOKEN", "secret-of-the-rank"}, {"NCCL_DEBUG", "WARN"}}, .watchdog = 200s});
  const auto run = std::to_string(launcher.pid());
  const Deadline deadline(60s);
  for (int code = 2; code == 2 && !deadline.expired();) {
    testing::LauncherProcess top({"top", "--once", run});
    code = top.finish();
  }
  EXPECT_THAT(report({"--run", run}),
              AllOf(HasSubstr(" 1 -1 --api-key=[redacted] --wait\n"), HasSubstr("\nNCCL_DEBUG=WARN\n"),
                    HasSubstr("\nNCCL_AUTH_TOKEN=[redacted]\n"), ContainsRegex("\nRANK=[01]\n"),
                    Not(HasSubstr("secret-of-the-rank"))));
  launcher.send(SIGTERM);
  launcher.finish();
}

TEST_F(ProblemReport, ReadsRecorderFilesAndLeavesSecretsAndTheHomeFolderOut) {
  const auto folder = file("recorder");
  testing::run_ranks(
      hangs, {.while_running = [&](const std::vector<int>& pids) {
        wait_for_the_hang(pids);
        testing::LauncherProcess dump({"recorder", "dump", std::to_string(pids[0]), "--out", folder});
        EXPECT_EQ(dump.finish(), 0) << dump.err();
        end(pids);
      }});
  const auto home = path("").parent_path().string();
  const auto text = report({"--run", folder}, {{"HOME", home},
                                               {"TORCH_HOME", home + "/weights"},
                                               {"NCCL_AUTH_TOKEN", "secret-1"},
                                               {"LOCKSTEP_SECRET", "secret-2-of-16-characters"},
                                               {"TORCH_MIRROR", "https://me:secret-3@host/x"},
                                               {"MY_NAME", "secret-4"},
                                               {"http_proxy", "http://me:secret-5@proxy"}});
  EXPECT_THAT(text, kNamesRank1);
  EXPECT_THAT(text,
              AllOf(HasSubstr("NCCL_AUTH_TOKEN=[redacted]\n"), HasSubstr("LOCKSTEP_SECRET=[redacted]\n"),
                    HasSubstr("TORCH_MIRROR=https://me:[redacted]@host/x\n")));
  EXPECT_THAT(text, Not(HasSubstr("secret-")));
  EXPECT_THAT(text,
              AllOf(HasSubstr("TORCH_HOME=~/weights\n"), HasSubstr("of ~/recorder\n"), Not(HasSubstr(home))));
}

// The current one until the end of the scope.
class CurrentFolder {
 public:
  explicit CurrentFolder(const std::filesystem::path& folder) { std::filesystem::current_path(folder); }
  ~CurrentFolder() {
    std::error_code ignored;
    std::filesystem::current_path(before_, ignored);
  }
  CurrentFolder(const CurrentFolder&) = delete;
  CurrentFolder& operator=(const CurrentFolder&) = delete;

 private:
  std::filesystem::path before_ = std::filesystem::current_path();
};

TEST_F(ProblemReport, BearsTheNameOfTheHostAndReplacesAnOldFile) {
  namespace fs = std::filesystem;
  observe::write_recorder_files({.host = "node3", .taken_at = 1, .ranks = {{.rank = 0, .pid = 5}}},
                                file("recorder"));
  const auto name = "lockstep-report-" + host_name() + ".txt";
  std::ofstream(path(name)) << "old\n";
  fs::permissions(path(name), fs::perms(0644));
  const CurrentFolder current(path("").parent_path());
  testing::LauncherProcess recorded({"doctor", "--report", "--run", "recorder"}, {.watchdog = 200s});
  EXPECT_LE(recorded.finish(), 1) << recorded.err();
  EXPECT_THAT(recorded.out(), AllOf(StartsWith(name + ": "), ContainsRegex("\nrun of 1 rank: [^\n]+\n$")));
  EXPECT_EQ(fs::status(path(name)).permissions(), fs::perms(0600));
  EXPECT_THAT(first_line(path(name)), StartsWith("Report of lockstep doctor"));

  fs::remove(path(name));
  testing::LauncherProcess bare({"doctor", "--report"}, {.watchdog = 200s});
  if (bare.finish() == 2) {  // this user has several runs here
    EXPECT_THAT(bare.err(), HasSubstr("of this user"));
    return;
  }
  EXPECT_THAT(bare.out(), AllOf(StartsWith(name + ": "), ContainsRegex("\n(no run|run of [0-9]+ ranks?): ")));
  EXPECT_EQ(fs::status(path(name)).permissions(), fs::perms(0600));
}

TEST_F(ProblemReport, LeavesLinksAsTheyAre) {
  std::filesystem::create_symlink("/dev/null", path("link"));
  const auto refusal = HasSubstr("it is a symbolic link, which is not replaced; name a regular file");
  EXPECT_THAT(expect_failure({"--report", file("link")}, 2), refusal);
  testing::LauncherProcess run({"run", "--nproc-per-node", "1", "--report", file("link"), "--", "/bin/true"});
  EXPECT_EQ(run.finish(), 2);
  EXPECT_THAT(run.err(), refusal);
  EXPECT_TRUE(std::filesystem::is_symlink(path("link")));
}

TEST_F(ProblemReport, SaysWhatIsWrongWithItsArguments) {
  EXPECT_THAT(expect_failure({"--report", file("none/report.txt")}, 2),
              AllOf(HasSubstr("--report"), HasSubstr("use an existing folder")));
  EXPECT_THAT(expect_failure({"--report", path("").parent_path().string()}, 2),
              HasSubstr("it is a folder; name a file"));
  // Runs of other tests are listed below it.
  const auto other = run({"--report", file("a"), "--run", "none"});
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, HasSubstr("there is no run \"none\" of this user on this host"));
  EXPECT_THAT(expect_failure({"--report", file("a"), "--run", path("").parent_path().string()}),
              HasSubstr("has no file that `lockstep recorder dump` wrote"));
  EXPECT_THAT(expect_failure({"--report", file("a"), "--json"}, 2), HasSubstr("--json"));
  EXPECT_THAT(expect_failure({"--report", file("a"), "--hosts", "b"}, 2), HasSubstr("--hosts"));
  EXPECT_THAT(expect_failure({"--run", "1"}, 2), HasSubstr("--run requires --report"));
  EXPECT_FALSE(std::filesystem::exists(path("a")));
}

}  // namespace
}  // namespace lockstep
