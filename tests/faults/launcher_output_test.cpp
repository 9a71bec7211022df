// SPDX-License-Identifier: BSD-3-Clause
// What becomes of the ranks' output on its way through the launcher.
#include <map>
#include <signal.h>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/launcher_process.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kRanks = 4;
constexpr int kLines = 20'000;

// Every line of `text` is whole and each rank's are in order; counts them.
std::map<std::string, int> checked_flood(const std::string& text) {
  std::map<std::string, int> next;
  for (const auto& line : lines_of(text)) {
    if (line.starts_with("[lockstep] ")) continue;
    std::istringstream fields(line);
    std::string bracket, marked_rank, stream, rank, index, fill;
    fields >> bracket >> marked_rank >> stream >> rank >> index >> fill;
    const std::string key = stream + " " + rank;
    const int expected = next[key]++;
    const bool whole = bracket == "[rank" && marked_rank == rank + "]" && index == std::to_string(expected) &&
                       fill == std::string(static_cast<std::size_t>(expected % 300), 'x');
    if (!whole) {
      ADD_FAILURE() << "expected line " << expected << " of " << key << ", got: " << line;
      return {};
    }
  }
  return next;
}

std::vector<std::string> flood() {
  return {"run",   "--nproc-per-node",    std::to_string(kRanks), LAUNCHER_RANK_PROGRAM,
          "flood", std::to_string(kLines)};
}

TEST(LauncherOutput, LosesAndSplitsNoLineUnderLoad) {
  LauncherProcess launcher(flood());
  ASSERT_EQ(launcher.finish(), 0);
  const auto out = checked_flood(launcher.out());
  const auto err = checked_flood(launcher.err());
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(out, (std::map<std::string, int>{
                       {"out 0", kLines}, {"out 1", kLines}, {"out 2", kLines}, {"out 3", kLines}}));
    EXPECT_EQ(err, (std::map<std::string, int>{
                       {"err 0", kLines}, {"err 1", kLines}, {"err 2", kLines}, {"err 3", kLines}}));
  }
}

TEST(LauncherOutput, SplitsNoLineIfBothStreamsGoToOneFile) {
  LauncherProcess launcher(flood(), {.output = Output::one_pipe});
  ASSERT_EQ(launcher.finish(), 0);
  const auto lines = checked_flood(launcher.out());
  EXPECT_EQ(lines.size(), 2u * kRanks);
  for (const auto& [key, count] : lines) EXPECT_EQ(count, kLines) << key;
}

TEST(LauncherOutput, KeepsStreamsApartAndEndsTheLastLine) {
  LauncherProcess launcher(shell_ranks(1, "printf 'to out'; printf 'to err' >&2"));
  ASSERT_EQ(launcher.finish(), 0);
  EXPECT_EQ(launcher.out(), "[rank 0] to out\n");
  EXPECT_EQ(launcher.err(), "[rank 0] to err\n");
}

TEST(LauncherOutput, ForwardsALineImmediately) {
  LauncherProcess launcher(shell_ranks(1, "echo first; sleep 1000"));
  launcher.wait_for("[rank 0] first\n");
  launcher.send(SIGTERM);
  EXPECT_EQ(launcher.finish(), 143);
}

TEST(LauncherOutput, IsPlainInPipesAndColouredOnATerminal) {
  const std::map<std::string, std::string> terminal{{"TERM", "xterm"}, {"NO_COLOR", ""}};
  LauncherProcess in_pipe(shell_ranks(2, "echo hello"), {.env = terminal});
  ASSERT_EQ(in_pipe.finish(), 0);
  EXPECT_THAT(in_pipe.out(), Not(HasSubstr("\x1b")));

  LauncherProcess on_terminal(shell_ranks(2, "echo hello"), {.env = terminal, .output = Output::terminal});
  ASSERT_EQ(on_terminal.finish(), 0);
  EXPECT_THAT(on_terminal.out(),
              AllOf(HasSubstr("\x1b[36m[rank 0]\x1b[0m hello"), HasSubstr("\x1b[33m[rank 1]\x1b[0m hello")));

  LauncherProcess no_colour(shell_ranks(2, "echo hello"),
                            {.env = {{"TERM", "xterm"}, {"NO_COLOR", "1"}}, .output = Output::terminal});
  ASSERT_EQ(no_colour.finish(), 0);
  EXPECT_THAT(no_colour.out(), AllOf(Not(HasSubstr("\x1b")), HasSubstr("[rank 1] hello")));
}

TEST(LauncherOutput, EndsARunWhoseOutputHasNoReader) {
  LauncherProcess launcher(shell_ranks(2, "while :; do echo more; done"));
  launcher.wait_for("more");
  launcher.stop_reading_stdout();
  EXPECT_EQ(launcher.finish(), 128 + SIGPIPE);
  EXPECT_THAT(launcher.err(), HasSubstr("stdout has no reader"));
  launcher.wait_for_no_family();
}

}  // namespace
}  // namespace lockstep::testing
