// SPDX-License-Identifier: BSD-3-Clause
#include "command_line.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "run_command.h"

namespace lockstep::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Words = std::vector<std::string>;

// `words` stand after "lockstep run".
RunArguments parse(Words words, const Words& rest = {}) {
  CLI::App app;
  const RunCommand command(app);
  words.insert(words.begin(), "run");
  std::ranges::reverse(words);
  app.parse(words);
  return command.arguments(rest);
}

std::string complaint(const RunArguments& arguments) {
  try {
    launch_options(arguments, {.cores = 4, .gpus = 0});
  } catch (const ArgumentError& error) {
    return error.what();
  }
  return "";
}

TEST(RunCommandLine, TakesBothSpellings) {
  for (const Words& words :
       {Words{"--nproc-per-node", "3", "--node-rank=1", "--master-addr", "a", "--master-port", "5"},
        Words{"--nproc_per_node=3", "--node_rank", "1", "--master_addr=a", "--master_port=5"}}) {
    const auto arguments = parse(words);
    EXPECT_EQ(arguments.nproc_per_node, "3");
    EXPECT_EQ(arguments.node_rank, 1);
    EXPECT_EQ(arguments.master_addr, "a");
    EXPECT_EQ(arguments.master_port, 5);
  }
}

TEST(RunCommandLine, LeavesEverythingFromTheProgramOnToTheProgram) {
  const auto arguments =
      parse({"--nproc-per-node", "2", "./train", "--nproc-per-node", "9", "--help", "run"});
  EXPECT_EQ(arguments.nproc_per_node, "2");
  EXPECT_THAT(arguments.command, ElementsAre("./train", "--nproc-per-node", "9", "--help", "run"));
}

TEST(RunCommandLine, EndsItsOptionsAtTheFirstDashesOnly) {
  EXPECT_THAT(parse({"--standalone"}, {"--", "-odd-name", "--", "x"}).command,
              ElementsAre("-odd-name", "--", "x"));
  EXPECT_THAT(parse({"./train", "a"}, {"--", "b"}).command, ElementsAre("./train", "a", "--", "b"));
  EXPECT_THAT(parse({}, {"--"}).command, IsEmpty());
}

TEST(RunCommandLine, RefusesAnUnknownOptionInsteadOfRunningIt) {
  EXPECT_THROW(parse({"--nproc-per-nod", "2", "./train"}), ArgumentError);
}

TEST(RunCommandLine, TurnsIntoLaunchOptions) {
  const auto options = launch_options({.nproc_per_node = "cpu",
                                       .nnodes = "2:2",
                                       .node_rank = 1,
                                       .master_addr = "node0",
                                       .master_port = 29500,
                                       .grace_period = 0.25,
                                       .command = {"./train"}},
                                      {.cores = 4, .gpus = 0});
  EXPECT_EQ(options.nproc_per_node, 4);
  EXPECT_EQ(options.nnodes, 2);
  EXPECT_EQ(options.node_rank, 1);
  EXPECT_EQ(options.master_addr, "node0");
  EXPECT_EQ(options.master_port, 29500);
  EXPECT_EQ(options.run_id, "none");
  EXPECT_EQ(options.grace_period, std::chrono::milliseconds(250));
}

TEST(RunCommandLine, GivesAStandaloneRunItsOwnId) {
  const RunArguments arguments{.standalone = true, .command = {"x"}};
  EXPECT_NE(launch_options(arguments, {}).run_id, launch_options(arguments, {}).run_id);
}

TEST(RunCommandLine, SaysWhatMakesNoSense) {
  const Words x{"x"};
  EXPECT_EQ(complaint({.command = x}), "");
  EXPECT_THAT(complaint({}), HasSubstr("no program"));
  EXPECT_THAT(complaint({.nproc_per_node = "abc", .command = x}), HasSubstr("\"abc\""));
  EXPECT_THAT(complaint({.nnodes = "1:4", .command = x}), HasSubstr("elastic"));
  EXPECT_THAT(complaint({.nnodes = "0", .command = x}), HasSubstr("--nnodes 0"));
  EXPECT_THAT(complaint({.nnodes = "2", .node_rank = 0, .master_addr = "a", .command = x}),
              HasSubstr("--master-port"));
  EXPECT_THAT(complaint({.master_port = 70000, .command = x}), HasSubstr("--master-port 70000"));
  EXPECT_THAT(complaint({.master_port = 29500, .standalone = true, .command = x}), HasSubstr("--standalone"));
  EXPECT_THAT(complaint({.grace_period = -1, .command = x}), HasSubstr("--grace-period"));
}

TEST(CommandLine, ExitsWith2WhenItIsWrong) {
  for (const Words& words :
       {Words{}, Words{"bogus"}, Words{"run"}, Words{"run", "--nproc-per-node"},
        Words{"run", "--nproc-per-node", "0", "true"}, Words{"run", "--bogus", "true"}}) {
    EXPECT_EQ(run(words), kUsageError) << ::testing::PrintToString(words);
  }
}

TEST(CommandLine, TellsItsVersion) {
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(run({"--version"}), 0);
  EXPECT_THAT(::testing::internal::GetCapturedStdout(),
              ::testing::MatchesRegex("lockstep [0-9]+\\.[0-9]+\\.[0-9]+\n"));
}

}  // namespace
}  // namespace lockstep::cli
