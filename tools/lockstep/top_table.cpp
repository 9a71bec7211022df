// SPDX-License-Identifier: BSD-3-Clause
#include "top_table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cwchar>
#include <functional>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/text.h"

namespace lockstep::cli {
namespace {

using observe::Life;
using observe::Rank;
using observe::RankFigures;

constexpr std::size_t kPlainWidth = 200;
constexpr std::size_t kHostWidth = 10;
constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();

// In the order of Phase.
constexpr std::array<const char*, kPhases> kPhaseLabels{"other", "forward", "backward", "comm",
                                                        "data",  "optim",   "ckpt"};

// A character of a terminal's line.
struct Glyph {
  std::string text{};
  std::size_t columns = 0;
};

std::vector<Glyph> glyphs_of(const std::string& text) {
  std::vector<Glyph> glyphs;
  std::mbstate_t state{};
  for (std::size_t at = 0; at < text.size();) {
    wchar_t letter = 0;
    const auto length = std::mbrtowc(&letter, text.data() + at, text.size() - at, &state);
    const bool is_whole = length != 0 && length <= text.size() - at;
    const int columns = is_whole ? ::wcwidth(letter) : -1;
    const auto bytes = is_whole ? length : 1;
    if (columns > 0) {
      glyphs.push_back({text.substr(at, bytes), static_cast<std::size_t>(columns)});
    } else {
      for (std::size_t i = 0; i < bytes; ++i)
        glyphs.push_back({fmt::format("\\x{:02x}", static_cast<unsigned char>(text[at + i])), 4});
    }
    if (!is_whole) state = {};
    at += bytes;
  }
  return glyphs;
}

std::size_t columns_of(const std::string& text) {
  std::size_t columns = 0;
  for (const auto& glyph : glyphs_of(text)) columns += glyph.columns;
  return columns;
}

std::string count_text(std::uint64_t count) {
  if (count < 10'000'000) return std::to_string(count);
  return fmt::format("{:.1f}M", static_cast<double>(count) / 1e6);
}

std::string rate_text(double rate) {
  if (rate <= 0) return "-";
  if (rate < 9.995) return fmt::format("{:.2f}", rate);
  if (rate < 99.95) return fmt::format("{:.1f}", rate);
  if (rate < 1e5) return fmt::format("{:.0f}", rate);
  return rate < 1e6 ? fmt::format("{:.0f}k", rate / 1e3) : fmt::format("{:.1f}M", rate / 1e6);
}

// "1.2G"
std::string short_bytes(std::int64_t bytes) {
  if (bytes <= 0) return "-";
  constexpr std::array kUnits{"K", "M", "G", "T"};
  auto value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; value >= 999.5 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return fmt::format("{:.{}f}{}", value, value < 9.95 ? 1 : 0, kUnits.at(unit));
}

std::string state_of(const Rank& rank) {
  switch (rank.life) {
    case Life::dead:
      return "DEAD";
    case Life::stopped:
      return "STOPPED";
    case Life::finished:
      return "left";
    case Life::alive:
      break;
  }
  if (rank.progress) return kPhaseLabels.at(static_cast<std::size_t>(rank.progress->phase));
  return "-";
}

std::string share_of(const Rank& rank, const RankFigures& figures, Phase phase) {
  if (!rank.progress) return "-";
  return fmt::format("{:.0f}", 100 * figures.shares.at(static_cast<std::size_t>(phase)));
}

std::string call_text(const observe::CallUnderWay& under_way) {
  const auto bytes = under_way.bytes == 0 ? "" : fmt::format(", {}", bytes_text(under_way.bytes));
  return fmt::format("{} of group {}{}{}, for {}", under_way.call.describe(), under_way.group,
                     under_way.backend.empty() ? "" : fmt::format(" ({})", under_way.backend), bytes,
                     time_text(under_way.age));
}

struct Column {
  const char* title;
  std::size_t width;            // 0: what is left
  std::size_t from;             // the table's width from which on it is shown
  std::size_t from_with_hosts;  // in a table of several hosts
  std::function<std::string(const Rank&, const RankFigures&)> text;
};

Column share_column(const char* title, Phase phase) {
  return {title, 3, 0, 0,
          [phase](const Rank& rank, const RankFigures& figures) { return share_of(rank, figures, phase); }};
}

const std::vector<Column>& table_columns() {
  static const std::vector<Column> kColumns{
      {"RANK", 4, 0, 0, [](const Rank& rank, const RankFigures&) { return std::to_string(rank.rank); }},
      {"HOST", kHostWidth, kNever, 0,
       [](const Rank& rank, const RankFigures&) { return fitting_text(rank.host, kHostWidth); }},
      {"PID", 7, 0, 88, [](const Rank& rank, const RankFigures&) { return std::to_string(rank.thread); }},
      {"STATE", 8, 0, 0, [](const Rank& rank, const RankFigures&) { return state_of(rank); }},
      {"FOR", 6, 0, 0,
       [](const Rank& rank, const RankFigures& figures) {
         return rank.progress ? time_text(figures.phase_age) : "-";
       }},
      {"STEP", 7, 0, 0,
       [](const Rank& rank, const RankFigures&) {
         return rank.progress ? count_text(rank.progress->steps) : "-";
       }},
      {"STEP/S", 6, 0, 0,
       [](const Rank&, const RankFigures& figures) { return rate_text(figures.steps_per_second); }},
      {"SAMP/S", 6, 0, 0,
       [](const Rank&, const RankFigures& figures) { return rate_text(figures.samples_per_second); }},
      share_column("FWD", Phase::forward),
      share_column("BWD", Phase::backward),
      share_column("COM", Phase::communication),
      share_column("DAT", Phase::data),
      share_column("OPT", Phase::optimizer),
      {"RES", 5, 0, 0,
       [](const Rank&, const RankFigures& figures) { return short_bytes(figures.memory.resident); }},
      {"PSS", 5, 82, kNever,  // is not read on other hosts
       [](const Rank&, const RankFigures& figures) { return short_bytes(figures.memory.proportional); }},
      {"CALL", 0, 110, 110,
       [](const Rank&, const RankFigures& figures) { return figures.call ? call_text(*figures.call) : ""; }}};
  return kColumns;
}

// Cells of a line, numbers to the right. Host, state and call are words.
std::string line_of(std::size_t width, bool hosts, const std::function<std::string(const Column&)>& cell) {
  std::string line;
  for (const auto& column : table_columns()) {
    if ((hosts ? column.from_with_hosts : column.from) > width) continue;
    const bool is_words = column.width == 0 || column.width == 8 || column.width == kHostWidth;
    line += line.empty() ? "" : " ";
    line += is_words ? fmt::format("{:<{}}", cell(column), column.width)
                     : fmt::format("{:>{}}", cell(column), column.width);
  }
  return fitting_text(line, width);
}

}  // namespace

std::string printable_text(const std::string& text) {
  std::string printable;
  for (const auto& glyph : glyphs_of(text)) printable += glyph.text;
  return printable;
}

std::string printable_lines(const std::string& text) {
  auto lines = split(text, '\n');
  for (auto& line : lines) line = printable_text(line);
  return fmt::format("{}", fmt::join(lines, "\n"));
}

std::string fitting_text(const std::string& text, std::size_t width) {
  std::string fitting;
  std::size_t columns = 0;
  for (const auto& glyph : glyphs_of(text)) {
    if (columns + glyph.columns > width) break;
    fitting += glyph.text;
    columns += glyph.columns;
  }
  return fitting;
}

std::vector<std::string> wrapped_text(const std::string& text, std::size_t width, std::size_t lines) {
  std::vector<std::string> wrapped;
  for (const auto& word : split(text, ' ')) {
    const auto next = printable_text(word);
    if (wrapped.empty() || columns_of(wrapped.back()) + 1 + columns_of(next) > width) {
      if (wrapped.size() == lines) {
        wrapped.back() = fitting_text(wrapped.back(), width < 3 ? 0 : width - 3) + "...";
        return wrapped;
      }
      wrapped.push_back(fitting_text(next, width));
    } else {
      wrapped.back() += " " + next;
    }
  }
  return wrapped;
}

std::string time_text(std::int64_t nanoseconds) {
  const auto seconds = static_cast<double>(nanoseconds) / 1e9;
  if (seconds < 0.001) return fmt::format("{:.0f} us", seconds * 1e6);
  if (seconds < 0.9995) return fmt::format("{:.0f} ms", seconds * 1e3);
  if (seconds < 99.95) return fmt::format("{:.1f} s", seconds);
  if (seconds < 100 * 60.0) return fmt::format("{:.0f} m", seconds / 60);
  return seconds < 100 * 3600.0 ? fmt::format("{:.0f} h", seconds / 3600)
                                : fmt::format("{:.0f} d", seconds / 86400);
}

std::string table_heading(std::size_t width, bool hosts) {
  return line_of(width, hosts, [](const Column& column) { return column.title; });
}

std::string table_line(const Rank& rank, const RankFigures& figures, std::size_t width) {
  return line_of(width, !rank.host.empty(), [&](const Column& column) { return column.text(rank, figures); });
}

std::string run_line(const Snapshot& snapshot) {
  const auto& run = snapshot.run;
  const auto first =
      std::ranges::find_if(run.ranks, [](const Rank& rank) { return rank.progress.has_value(); });
  const auto size =
      first == run.ranks.end() ? run.ranks.size() : static_cast<std::size_t>(first->progress->size);
  auto line = fmt::format("run{}{} on {}: {}{} rank{}", run.id.empty() ? "" : " ", run.id,
                          run.hosts.size() > 1 ? fmt::format("{} hosts", run.hosts.size()) : run.host,
                          run.ranks.size(), size > run.ranks.size() ? fmt::format(" of {}", size) : "",
                          size == 1 ? "" : "s");
  if (first != run.ranks.end())
    line += fmt::format(", {}", time_text(run.taken_at - first->progress->began_at));
  if (snapshot.figures.steps_per_second > 0)
    line += fmt::format(", {} steps/s", rate_text(snapshot.figures.steps_per_second));
  if (snapshot.figures.samples_per_second > 0)
    line += fmt::format(", {} samples/s", rate_text(snapshot.figures.samples_per_second));
  return line;
}

std::string numbers_line(const Snapshot& snapshot) {
  std::vector<std::string> parts;
  for (const auto& traffic : snapshot.figures.traffic) {
    parts.push_back(
        fmt::format("{} {}/s", traffic.backend,
                    bytes_text(static_cast<std::uint64_t>(std::llround(traffic.bytes_per_second)))));
  }
  for (const auto& rank : snapshot.run.ranks) {
    if (rank.restarts > 0 && &rank == &snapshot.run.ranks.front())
      parts.push_back(fmt::format("restarts {}", rank.restarts));
    if (!rank.progress) continue;
    const auto& numbers = rank.progress->numbers;
    const bool reports_epoch =
        std::ranges::any_of(numbers, [](const auto& each) { return each.first == "epoch"; });
    if (rank.progress->epoch >= 0 && !reports_epoch)
      parts.push_back(fmt::format("epoch {}", rank.progress->epoch));
    for (const auto& [name, value] : numbers) parts.push_back(fmt::format("{} {:.5g}", name, value));
    break;
  }
  return fmt::format("{}", fmt::join(parts, "  "));
}

std::string rank_sentence(const Rank& rank, const RankFigures& figures, std::int64_t now) {
  if (rank.life == Life::dead) return rank.describe() + " is dead";
  if (rank.life == Life::finished) return rank.describe() + " has left the run";
  auto text = rank.describe() + (rank.life == Life::stopped ? " is stopped" : " runs");
  if (figures.call) text += ", in " + call_text(*figures.call);
  if (!rank.progress) return text;
  if (!figures.call) {
    text +=
        fmt::format(", in phase {} for {}", kPhaseNames.at(static_cast<std::size_t>(rank.progress->phase)),
                    time_text(figures.phase_age));
  }
  if (!rank.progress->reading.empty())
    text += fmt::format("; reads {} for {}", rank.progress->reading,
                        time_text(now - rank.progress->reading_since));
  if (rank.progress->gathered > 0)
    text += fmt::format("; {} of parameters are gathered",
                        bytes_text(static_cast<std::uint64_t>(rank.progress->gathered)));
  return text;
}

std::vector<std::string> call_lines(const Rank& rank, std::int64_t now) {
  struct Entry {
    const observe::Membership* member;
    const observe::Call* call;
  };
  std::vector<Entry> entries;
  for (const auto& member : rank.groups) {
    for (const auto& call : member.calls) entries.push_back({&member, &call});
  }
  std::ranges::stable_sort(entries, std::greater(), [](const Entry& entry) { return entry.call->issued_at; });
  std::vector<std::string> lines;
  for (const auto& [member, call] : entries) {
    const char* const end = call->number == member->failed      ? "failed"
                            : call->number <= member->completed ? "done"
                                                                : "under way";
    lines.push_back(fmt::format("{:>6} ago  {:<9}  {} of group {}", time_text(now - call->issued_at), end,
                                call->describe(), member->group));
  }
  return lines;
}

std::vector<std::string> arrival_lines(const observe::Figures& figures) {
  std::vector<std::string> lines;
  for (const auto& last : figures.arrivals) {
    lines.push_back(fmt::format("last to enter {} #{} of group {}: rank {}, {} after the first",
                                last.call.name, last.call.sequence, last.group, last.rank,
                                time_text(last.behind)));
  }
  return lines;
}

std::vector<std::string> unseen_lines(const observe::Run& run) {
  std::vector<std::string> lines;
  for (const auto& host : run.hosts) {
    if (!host.problem.empty()) lines.push_back(fmt::format("not seen: {}: {}", host.name, host.problem));
  }
  return lines;
}

std::string plain_text(const Snapshot& snapshot) {
  std::string text = printable_text(run_line(snapshot)) + '\n';
  if (const auto numbers = numbers_line(snapshot); !numbers.empty()) text += printable_text(numbers) + '\n';
  text += printable_text(snapshot.verdict.text) + '\n';
  for (const auto& line : unseen_lines(snapshot.run)) text += printable_text(line) + '\n';
  text += table_heading(kPlainWidth, !snapshot.run.hosts.empty()) + '\n';
  const auto& ranks = snapshot.run.ranks;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    auto line = table_line(ranks[i], snapshot.figures.ranks[i], kPlainWidth);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  for (const auto& line : arrival_lines(snapshot.figures)) text += printable_text(line) + '\n';
  return text;
}

}  // namespace lockstep::cli
