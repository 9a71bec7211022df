// SPDX-License-Identifier: BSD-3-Clause
#include "top_page.h"

#include <algorithm>
#include <array>
#include <iterator>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace lockstep::cli {
namespace {

constexpr std::size_t kAlarmLines = 4;
constexpr std::size_t kSentenceLines = 3;
constexpr std::size_t kUnseenLines = 3;
constexpr std::size_t kArrivalLines = 2;

constexpr std::array<const char*, 5> kOrderNames{"rank", "steps/s", "communication", "data", "memory"};

const std::vector<std::string> kHelp{
    "q       leave",
    "up k    pick the rank above; in calls, stack and help: scroll",
    "down j  pick the rank below",
    "o       order by rank, steps/s, communication, data, memory",
    "c       last calls of the picked rank",
    "s       stack of the picked rank: its threads stand still for some milliseconds",
    "Esc     back to the ranks, as c, s and h again",
    "h ?     this help",
    "",
    "STATE   what the rank does now, and FOR how long: other (its own code), forward,",
    "        backward, comm (waits for a call), data (waits for a batch), optim, ckpt",
    "FWD BWD COM DAT OPT   percent of the time of its last 64 steps",
    "RES PSS memory of its process; PSS counts pages that n processes share as 1/n",
};

double value_of(const Snapshot& snapshot, std::size_t place, Order order) {
  const auto& figures = snapshot.figures.ranks[place];
  const auto share = [&](Phase phase) { return figures.shares.at(static_cast<std::size_t>(phase)); };
  switch (order) {
    case Order::rank:
      break;
    case Order::steps:
      return -figures.steps_per_second;
    case Order::communication:
      return share(Phase::communication);
    case Order::data:
      return share(Phase::data);
    case Order::memory:
      return static_cast<double>(figures.memory.resident);
  }
  return -snapshot.run.ranks[place].rank;
}

class Page {
 public:
  Page(const Snapshot& snapshot, View& view) : snapshot_(snapshot), view_(view) {}

  std::vector<ScreenLine> lines() {
    add_top();
    const auto below = view_.panel == Panel::ranks ? below_ranks() : std::vector<std::string>{};
    // Lines for the panel, besides its heading and the keys.
    const auto used = lines_.size() + below.size() + 2;
    const auto room = view_.height > used ? view_.height - used : 1;
    view_.panel == Panel::ranks ? add_ranks(room) : add_panel(room);
    for (const auto& line : below) add(line);
    lines_.resize(std::min(lines_.size(), view_.height - 1));
    while (lines_.size() + 1 < view_.height) add("");
    add(keys(), Look::heading);
    return std::move(lines_);
  }

 private:
  void add(const std::string& text, Look look = Look::plain) {
    lines_.push_back({fitting_text(text, view_.width), look});
  }

  void add_alarm(const std::string& text, std::size_t most_lines) {
    for (const auto& line : wrapped_text(text, view_.width, most_lines)) add(line, Look::alarm);
  }

  void add_top() {
    add(run_line(snapshot_));
    if (const auto numbers = numbers_line(snapshot_); !numbers.empty()) add(numbers);
    if (snapshot_.verdict.cause != observe::Cause::none) add_alarm(snapshot_.verdict.text, kAlarmLines);
    const auto unseen = fmt::format("{}", fmt::join(unseen_lines(snapshot_.run), "; "));
    if (!unseen.empty()) add_alarm(unseen, kUnseenLines);
  }

  // The place of the picked rank in Run::ranks; the first one if it has gone.
  std::size_t picked_place() const {
    const auto& ranks = snapshot_.run.ranks;
    const auto found = std::ranges::find(ranks, view_.picked, &observe::Rank::rank);
    return found == ranks.end() ? 0 : static_cast<std::size_t>(found - ranks.begin());
  }

  void add_ranks(std::size_t room) {
    add(" " + table_heading(view_.width - 1, !snapshot_.run.hosts.empty()), Look::heading);
    const auto order = ranks_in_order(snapshot_, view_.order);
    const auto picked = picked_place();
    const auto at = static_cast<std::size_t>(std::ranges::find(order, picked) - order.begin());
    const auto first = at < room ? 0 : at - room + 1;
    for (std::size_t i = first; i < std::min(order.size(), first + room); ++i) {
      const auto place = order[i];
      add((place == picked ? ">" : " ") +
              table_line(snapshot_.run.ranks[place], snapshot_.figures.ranks[place], view_.width - 1),
          place == picked ? Look::picked : Look::plain);
    }
  }

  std::vector<std::string> below_ranks() const {
    const auto& ranks = snapshot_.run.ranks;
    if (ranks.empty() || view_.height < 16) return {};
    const auto place = picked_place();
    std::vector<std::string> lines{""};
    std::ranges::copy(
        wrapped_text(rank_sentence(ranks[place], snapshot_.figures.ranks[place], snapshot_.run.taken_at),
                     view_.width, kSentenceLines),
        std::back_inserter(lines));
    auto arrivals = arrival_lines(snapshot_.figures);
    arrivals.resize(std::min(arrivals.size(), kArrivalLines));
    std::ranges::copy(arrivals, std::back_inserter(lines));
    return lines;
  }

  void add_panel(std::size_t room) {
    const auto place = picked_place();
    const auto& ranks = snapshot_.run.ranks;
    const auto who = ranks.empty() ? "the rank" : ranks[place].describe();
    std::vector<std::string> lines = kHelp;
    std::string title = "help";
    if (view_.panel == Panel::calls) {
      title = "last calls of " + who;
      lines = ranks.empty() ? std::vector<std::string>{} : call_lines(ranks[place], snapshot_.run.taken_at);
    } else if (view_.panel == Panel::stack) {
      title = "stack of " + who;
      lines = view_.stack;
    }
    view_.first = std::min(view_.first, lines.size() > room ? lines.size() - room : 0);
    add(title + std::string(view_.width, ' '), Look::heading);
    for (std::size_t i = view_.first; i < std::min(lines.size(), view_.first + room); ++i) add(lines[i]);
  }

  std::string keys() const {
    const auto keys = view_.panel == Panel::ranks
                          ? fmt::format("q leave  up/down pick  c calls  s stack  o order: {}  h help",
                                        kOrderNames.at(static_cast<std::size_t>(view_.order)))
                          : std::string("q leave  up/down scroll  Esc back");
    return keys + std::string(view_.width, ' ');
  }

  const Snapshot& snapshot_;
  View& view_;
  std::vector<ScreenLine> lines_;
};

}  // namespace

std::vector<std::size_t> ranks_in_order(const Snapshot& snapshot, Order order) {
  std::vector<std::size_t> places(snapshot.run.ranks.size());
  for (std::size_t i = 0; i < places.size(); ++i) places[i] = i;
  std::ranges::stable_sort(places, std::greater(),
                           [&](std::size_t place) { return value_of(snapshot, place, order); });
  return places;
}

std::vector<ScreenLine> page_of(const Snapshot& snapshot, View& view) { return Page(snapshot, view).lines(); }

}  // namespace lockstep::cli
