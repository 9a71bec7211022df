// SPDX-License-Identifier: BSD-3-Clause
#include "top_page.h"

#include <algorithm>
#include <clocale>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runs.h"

namespace lockstep::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// Rank `late` of so many has not made call 2; the others wait in it.
cli::Snapshot late_snapshot(int size, int late) {
  std::vector<std::vector<observe::Membership>> ranks;
  for (int rank = 0; rank < size; ++rank) {
    const bool waits = rank != late;
    auto calls = waits ? std::vector{call(1, 5), call(2, 4.2)} : std::vector{call(1, 5)};
    ranks.push_back({member(rank, size, std::move(calls), waits)});
  }
  cli::Snapshot snapshot{.run = run_of(std::move(ranks))};
  for (auto& rank : snapshot.run.ranks)
    rank.progress = {.size = size, .phase = Phase::communication, .phase_since = kNow - kSecond, .steps = 7};
  snapshot.run.ranks[0].progress->numbers = {{"loss\n", 0.5}};
  snapshot.figures = observe::figures_of(snapshot.run);
  snapshot.verdict = observe::judge(snapshot.run);
  return snapshot;
}

std::string text_of(const std::vector<cli::ScreenLine>& lines) {
  std::string text;
  for (const auto& line : lines) text += line.text + '\n';
  return text;
}

TEST(TopPage, FitsIntoAnyTerminal) {
  const auto snapshot = late_snapshot(64, 40);
  for (const auto panel : {cli::Panel::ranks, cli::Panel::calls, cli::Panel::stack, cli::Panel::help}) {
    for (const std::size_t width : {1U, 20U, 80U, 200U}) {
      for (const std::size_t height : {1U, 5U, 24U, 100U}) {
        cli::View view{.width = width, .height = height, .panel = panel, .first = 99};
        view.stack = {std::string(300, 'x')};
        const auto lines = page_of(snapshot, view);
        EXPECT_THAT(lines, SizeIs(height));
        for (const auto& line : lines) EXPECT_LE(line.text.size(), width) << line.text;
      }
    }
  }
}

TEST(TopPage, ShowsTheCauseThePickedRankAndItsCall) {
  cli::View view{.picked = 60};
  const auto text = text_of(page_of(late_snapshot(64, 40), view));
  EXPECT_THAT(text, HasSubstr("rank 40 (pid 140) has not entered all_reduce #2"));
  EXPECT_THAT(text, HasSubstr("\n>  60     160 comm      1.0 s       7 "));
  EXPECT_THAT(text,
              HasSubstr("\nrank 60 (pid 160) runs, in all_reduce #2 of Float[4] at train.cpp:40 of group"));
  EXPECT_THAT(text, HasSubstr("loss\\x0a 0.5"));
  view.panel = cli::Panel::calls;
  EXPECT_THAT(text_of(page_of(late_snapshot(64, 40), view)),
              HasSubstr("\n 4.2 s ago  under way  all_reduce #2"));
}

TEST(TopPage, OfSeveralHostsShowsThemAndThoseThatAreNotSeen) {
  auto snapshot = late_snapshot(4, 2);
  snapshot.run.hosts = {{"node-with-a-long-name", ""}, {"node4", "its launcher did not answer within 2 s"}};
  for (auto& rank : snapshot.run.ranks) rank.host = "node-with-a-long-name";
  cli::View view{};
  const auto text = text_of(page_of(snapshot, view));
  EXPECT_THAT(text, HasSubstr("run job on 2 hosts: 4 ranks"));
  EXPECT_THAT(text, HasSubstr("\nnot seen: node4: its launcher did not answer within 2 s\n"));
  EXPECT_THAT(text, HasSubstr("\n RANK HOST       STATE       FOR "));
  EXPECT_THAT(text, HasSubstr("\n>   0 node-with- comm      1.0 s       7 "));
  EXPECT_THAT(text, HasSubstr("   RES\n"));
  view.width = 100;
  EXPECT_THAT(text_of(page_of(snapshot, view)),
              HasSubstr("\n>   0 node-with-     100 comm      1.0 s       7 "));
  EXPECT_THAT(plain_text(snapshot), HasSubstr("\nnot seen: node4: its launcher did not answer within 2 s\n"));
}

TEST(TopPage, OrdersRanksByAColumn) {
  auto snapshot = late_snapshot(3, 1);
  auto& ranks = snapshot.figures.ranks;
  ranks[0].steps_per_second = 3;
  ranks[1].steps_per_second = 1;
  ranks[2].steps_per_second = 2;
  ranks[2].memory.resident = 5;
  EXPECT_THAT(ranks_in_order(snapshot, cli::Order::rank), ElementsAre(0, 1, 2));
  EXPECT_THAT(ranks_in_order(snapshot, cli::Order::steps), ElementsAre(1, 2, 0));
  EXPECT_THAT(ranks_in_order(snapshot, cli::Order::memory), ElementsAre(2, 0, 1));
}

TEST(TopPage, TextIsCutByColumnsAndBrokenAtSpaces) {
  ASSERT_NE(std::setlocale(LC_CTYPE, "C.UTF-8"), nullptr);
  EXPECT_EQ(cli::fitting_text("a\xE6\x97\xA5\xE6\x97\xA5", 4), "a\xE6\x97\xA5") << "two columns each";
  EXPECT_EQ(cli::printable_text("\x1b[2J\xC2\x9B\xFF"), "\\x1b[2J\\xc2\\x9b\\xff");
  EXPECT_EQ(cli::printable_text("\xE2\x80\xAE"), "\\xe2\\x80\\xae") << "it would turn the text";
  std::setlocale(LC_CTYPE, "C");
  EXPECT_EQ(cli::printable_text("\xC3\xA4"), "\\xc3\\xa4");
  EXPECT_THAT(cli::wrapped_text("one two three four", 9, 2), ElementsAre("one two", "three..."));
}

}  // namespace
}  // namespace lockstep::testing
