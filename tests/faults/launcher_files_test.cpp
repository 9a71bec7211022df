// SPDX-License-Identifier: BSD-3-Clause
// Log files, filters, error files, and programs that Python runs.
#include <filesystem>
#include <fstream>
#include <iterator>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/host.h"
#include "support/launcher_process.h"
#include "support/temp_folder.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  if (!file) ADD_FAILURE() << "there is no " << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

// The folder that the only run in `log_dir` has made.
fs::path run_folder(const fs::path& log_dir) {
  const fs::directory_iterator entries(log_dir);
  if (entries == fs::directory_iterator())
    throw std::runtime_error("there is no folder in " + log_dir.string());
  return entries->path();
}

const std::string kBothStreams = "echo out $RANK; echo err $RANK >&2";

TEST(LauncherFiles, ContainRedirectedAndCopiedStreams) {
  const TempFolder folder;
  LauncherProcess launcher(
      shell_ranks(2, kBothStreams, {"--log-dir", folder.path(), "-r", "0:1", "-t", "1:3"}));
  ASSERT_EQ(launcher.finish(), 0) << launcher.err();
  const auto attempt = run_folder(folder.path()) / "attempt_0";
  EXPECT_EQ(text_of(attempt / "0" / "stdout.log"), "out 0\n");
  EXPECT_FALSE(fs::exists(attempt / "0" / "stderr.log"));
  EXPECT_EQ(text_of(attempt / "1" / "stdout.log"), "out 1\n");
  EXPECT_EQ(text_of(attempt / "1" / "stderr.log"), "err 1\n");
  EXPECT_EQ(launcher.out(), "[rank 1] out 1\n") << "rank 0's is in its file only";
  EXPECT_THAT(launcher.err(), AllOf(HasSubstr("[rank 0] err 0\n"), HasSubstr("[rank 1] err 1\n")));
}

TEST(LauncherFiles, KeepEveryByteAndEveryAttempt) {
  const TempFolder folder;
  LauncherProcess launcher(
      shell_ranks(1, "printf '10%%\\r20%%\\rdone'; test $TORCHELASTIC_RESTART_COUNT = 1",
                  {"--log-dir", folder.path(), "--redirects", "3", "--max-restarts", "1"}));
  ASSERT_EQ(launcher.finish(), 0) << launcher.err();
  const auto run = run_folder(folder.path());
  EXPECT_EQ(text_of(run / "attempt_0" / "0" / "stdout.log"), "10%\r20%\rdone");
  EXPECT_EQ(text_of(run / "attempt_1" / "0" / "stdout.log"), "10%\r20%\rdone");
}

TEST(LauncherFiles, ShowTheLastLinesOfARedirectedRank) {
  const TempFolder folder;
  LauncherProcess launcher(
      shell_ranks(1, "echo my last words >&2; exit 3", {"--log-dir", folder.path(), "-r", "3"}));
  EXPECT_EQ(launcher.finish(), 3);
  const auto log = run_folder(folder.path()) / "attempt_0" / "0" / "stderr.log";
  EXPECT_THAT(launcher.err(), AllOf(HasSubstr("[lockstep]   my last words\n"), HasSubstr(log.string())));
}

TEST(LauncherFiles, FilterTheOutput) {
  LauncherProcess one(shell_ranks(3, kBothStreams, {"--local-ranks-filter", "1"}));
  ASSERT_EQ(one.finish(), 0);
  EXPECT_EQ(one.out(), "[rank 1] out 1\n");
  EXPECT_THAT(one.err(), AllOf(HasSubstr("[rank 1] err 1\n"), Not(HasSubstr("[rank 0]"))));

  const TempFolder folder;
  LauncherProcess duplicated(
      shell_ranks(2, "echo loss 1; echo chatter; echo 'a,b'; echo [lockstep rank $RANK] loss 2",
                  {"--log-dir", folder.path(), "--duplicate-stdout-filters", "loss,a,,b"}));
  ASSERT_EQ(duplicated.finish(), 0);
  EXPECT_THAT(text_of(run_folder(folder.path()) / "attempt_0" / "filtered_stdout.log"),
              AllOf(HasSubstr("[rank 0] loss 1\n"), HasSubstr("[rank 1] a,b\n"), Not(HasSubstr("chatter")),
                    HasSubstr("[rank 1] [lockstep] loss 2\n")));
}

TEST(LauncherFiles, UseTorchrunsTemplateForPrefixes) {
  const LauncherProcess::Options with_variable{
      .env = {{"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "<${role_name}/${local_rank}/${x}>"}}};
  LauncherProcess launcher(shell_ranks(1, "echo hello", {"--role", "trainer"}), with_variable);
  ASSERT_EQ(launcher.finish(), 0);
  EXPECT_EQ(launcher.out(), "<trainer/0/${x}>hello\n") << "the template is the whole prefix";

  LauncherProcess option(
      shell_ranks(1, "echo hello", {"--log_line_prefix_template", "${hostname}:${rank}: "}), with_variable);
  ASSERT_EQ(option.finish(), 0);
  EXPECT_EQ(option.out(), host_name() + ":0: hello\n") << "the option takes precedence";

  LauncherProcess empty(shell_ranks(1, "echo hello", {"--log-line-prefix-template", ""}));
  ASSERT_EQ(empty.finish(), 0);
  EXPECT_EQ(empty.out(), "[rank 0] hello\n");
}

TEST(LauncherFiles, ReportTheFirstFailureInJson) {
  const TempFolder folder;
  const auto file = fs::path(folder.path()) / "error.json";
  LauncherProcess launcher(shell_ranks(2, "test $RANK = 0 && exec sleep 1000; echo oh no >&2; exit 9",
                                       {"--error-file", file.string()}));
  EXPECT_EQ(launcher.finish(), 9);
  const auto json = nlohmann::json::parse(text_of(file));
  EXPECT_EQ(json["message"]["errorCode"], 9);
  EXPECT_EQ(json["lockstep"]["first"]["rank"], 1);
  EXPECT_EQ(json["lockstep"]["stderr_tail"], nlohmann::json::array({"oh no"}));
  EXPECT_EQ(json["lockstep"]["stopped"], nlohmann::json::array({0}));

  LauncherProcess fine(shell_ranks(1, "true", {"--error-file", file.string()}));
  EXPECT_EQ(fine.finish(), 0);
  EXPECT_FALSE(fs::exists(file)) << "an old failure";

  LauncherProcess refused(shell_ranks(1, "true", {"--error-file", file.string(), "--log-dir", "/proc/none"}));
  EXPECT_EQ(refused.finish(), 1);
  EXPECT_THAT(nlohmann::json::parse(text_of(file))["lockstep"]["reason"].get<std::string>(),
              HasSubstr("/proc/none"));
}

TEST(LauncherFiles, ReportAFolderThatCannotBeCreated) {
  LauncherProcess launcher(shell_ranks(1, "echo started", {"--log-dir", "/proc/none", "-r", "3"}));
  EXPECT_EQ(launcher.finish(), 1);
  EXPECT_THAT(launcher.err(), HasSubstr("/proc/none"));
  EXPECT_EQ(launcher.out(), "");
}

// What Python's @record leaves is shown, with a log folder and without.
TEST(LauncherPython, ReportsTheRecordedException) {
  const TempFolder folder;
  const auto script = fs::path(folder.path()) / "train.py";
  std::ofstream(script) << "import json, os\n"
                           "with open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w') as file:\n"
                           "  json.dump({'message': {'message': 'ValueError: odd', 'extraInfo': {}}}, file)\n"
                           "raise SystemExit(4)\n";
  for (const std::vector<std::string>& options :
       {std::vector<std::string>{},
        std::vector<std::string>{"--log-dir", (fs::path(folder.path()) / "logs").string()}}) {
    std::vector<std::string> words{"run", "--nproc-per-node", "2"};
    words.insert(words.end(), options.begin(), options.end());
    words.push_back(script.string());
    LauncherProcess launcher(words, {.env = {{"PYTHON_EXEC", LOCKSTEP_PYTHON}}});
    EXPECT_EQ(launcher.finish(), 4) << launcher.err();
    EXPECT_THAT(launcher.err(), HasSubstr("recorded: ValueError: odd\n"));
  }
}

TEST(LauncherPython, RunsScriptsAndModules) {
  const TempFolder folder;
  const auto script = fs::path(folder.path()) / "train.py";
  std::ofstream(script) << "import os, sys\nprint(os.environ['LOCAL_RANK'], *sys.argv[1:])\n";
  const LauncherProcess::Options python{
      .env = {{"PYTHON_EXEC", LOCKSTEP_PYTHON}, {"PYTHONPATH", folder.path()}}};

  LauncherProcess plain({"run", "--nproc-per-node", "2", script.string(), "--lr", "1"}, python);
  ASSERT_EQ(plain.finish(), 0) << plain.err();
  EXPECT_THAT(plain.out(), AllOf(HasSubstr("[rank 0] 0 --lr 1\n"), HasSubstr("[rank 1] 1 --lr 1\n")));

  LauncherProcess module({"run", "--pass-local-rank", "-m", "train", "x"}, python);
  ASSERT_EQ(module.finish(), 0) << module.err();
  EXPECT_EQ(module.out(), "[rank 0] 0 --local-rank=0 x\n");
}

}  // namespace
}  // namespace lockstep::testing
