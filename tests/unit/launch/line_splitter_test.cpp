// SPDX-License-Identifier: BSD-3-Clause
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launch/log_multiplexer.h"

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class LineSplitterTest : public ::testing::Test {
 protected:
  void feed(std::string_view bytes) { splitter_.feed(bytes, now_, sink()); }
  void finish() { splitter_.finish(sink()); }
  LineSplitter::Sink sink() {
    return [this](std::string_view line) { lines_.emplace_back(line); };
  }

  LineSplitter splitter_{{.max_line = 8, .redraw_interval = milliseconds(1000)}};
  LineSplitter::Clock::time_point now_{};
  std::vector<std::string> lines_;
};

TEST_F(LineSplitterTest, GivesLinesWhereverThePiecesEnd) {
  const std::string text = "one\n\ntwo\r\nthree\n";
  for (const char byte : text) feed({&byte, 1});
  EXPECT_THAT(lines_, ElementsAre("one", "", "two", "three"));
  lines_.clear();
  feed(text);
  EXPECT_THAT(lines_, ElementsAre("one", "", "two", "three"));
}

TEST_F(LineSplitterTest, HoldsBackAnUnfinishedLineUntilTheEnd) {
  feed("half");
  EXPECT_THAT(lines_, IsEmpty());
  finish();
  finish();
  EXPECT_THAT(lines_, ElementsAre("half"));
}

TEST_F(LineSplitterTest, CutsALongLineIntoPiecesAndAddsNoEmptyOne) {
  feed("0123456789abcdef\nnext\n");
  EXPECT_THAT(lines_, ElementsAre("01234567", "89abcdef", "next"));
}

TEST_F(LineSplitterTest, HoldsNoMoreThanOneLongLine) {
  LineSplitter splitter({.max_line = 1000});
  std::size_t longest = 0;
  std::size_t total = 0;
  const auto count = [&](std::string_view line) {
    longest = std::max(longest, line.size());
    total += line.size();
  };
  const std::string block(999, 'x');
  for (int i = 0; i < 10'000; ++i) {
    splitter.feed(block, now_, count);
    ASSERT_GE(total + 1000, block.size() * static_cast<std::size_t>(i + 1))
        << "more is held back than one line";
  }
  EXPECT_EQ(longest, 1000u);
}

TEST_F(LineSplitterTest, ShowsAProgressBarPeriodicallyAndItsFinalState) {
  for (int percent = 0; percent <= 100; percent += 10) {
    feed("\r");
    feed(std::to_string(percent) + "%");
    now_ += milliseconds(250);
  }
  feed("\nend\n");
  EXPECT_THAT(lines_, ElementsAre("0%", "40%", "80%", "100%", "end"));
}

TEST_F(LineSplitterTest, ShowsAProgressBarWithCarriageReturns) {
  feed("1%\r");
  EXPECT_THAT(lines_, IsEmpty()) << "a newline may still follow";
  feed("2%\r3%\r");
  EXPECT_THAT(lines_, ElementsAre("1%"));
  finish();
  EXPECT_THAT(lines_, ElementsAre("1%", "3%"));
}

TEST_F(LineSplitterTest, ForwardsEveryByte) {
  const std::string line("a\0b\x1b[1m", 7);
  feed(line + "\n");
  EXPECT_THAT(lines_, ElementsAre(line));
}

}  // namespace
}  // namespace lockstep::launch
