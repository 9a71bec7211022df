// SPDX-License-Identifier: BSD-3-Clause
#include "doctor/table.h"

#include <algorithm>
#include <numeric>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/text.h"

namespace lockstep::doctor {
namespace {

constexpr std::size_t kGap = 2;
constexpr std::size_t kNarrowest = 8;

bool continues_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U; }

std::size_t places(const std::string& text) {
  return text.size() - static_cast<std::size_t>(std::ranges::count_if(text, continues_character));
}

std::string first_places(const std::string& text, std::size_t count) {
  std::size_t end = 0;
  for (; end < text.size(); ++end) {
    if (continues_character(text[end])) continue;
    if (count-- == 0) break;
  }
  return text.substr(0, end);
}

std::string padded(const std::string& text, std::size_t width, bool right) {
  const std::string fill(width - std::min(width, places(text)), ' ');
  return right ? fill + text : text + fill;
}

}  // namespace

std::string shortened(const std::string& text, std::size_t width) {
  constexpr std::size_t dots = 3;
  if (places(text) <= width) return text;
  if (width <= dots) return first_places(text, width);
  return first_places(text, width - dots) + "...";
}

void Table::add(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  rows_.push_back({.cells = std::move(cells)});
}

void Table::add_note(const std::string& text) { rows_.push_back({.cells = {text}, .is_note = true}); }

std::vector<std::size_t> Table::widths(std::optional<std::size_t> width) const {
  std::vector<std::size_t> all;
  for (const auto& column : columns_) all.push_back(places(column.title));
  for (const auto& row : rows_) {
    for (std::size_t at = 0; !row.is_note && at < all.size(); ++at) {
      all[at] = std::max(all[at], places(row.cells[at]));
    }
  }
  const auto total = [&] { return std::accumulate(all.begin(), all.end(), kGap * (all.size() - 1)); };
  while (width && total() > *width) {
    std::size_t* widest = nullptr;
    for (std::size_t at = 0; at < all.size(); ++at) {
      if (columns_[at].may_shorten && (widest == nullptr || all[at] > *widest)) widest = &all[at];
    }
    if (widest == nullptr || *widest <= kNarrowest) break;
    *widest -= std::min(*widest - kNarrowest, total() - *width);
  }
  return all;
}

std::string Table::line(const Row& row, const std::vector<std::size_t>& widths) const {
  const std::string gap(kGap, ' ');
  std::string text;
  for (std::size_t at = 0; at < columns_.size(); ++at) {
    if (row.is_note && at > 0) return text + row.cells.front();
    const auto cell = row.is_note ? "" : shortened(row.cells[at], widths[at]);
    text += padded(cell, widths[at], columns_[at].right) + gap;
  }
  return text;
}

std::string Table::text(std::optional<std::size_t> width) const {
  const auto all = widths(width);
  std::vector<std::string> titles;
  for (const auto& column : columns_) titles.push_back(column.title);
  std::string result;
  const auto append = [&](const Row& row) {
    auto shown = line(row, all);
    shown.erase(shown.find_last_not_of(' ') + 1);
    result += (width ? shortened(shown, *width) : shown) + '\n';
  };
  append({.cells = titles});
  for (const auto& row : rows_) append(row);
  return result;
}

std::optional<std::size_t> terminal_width() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return std::nullopt;
  return size.ws_col;
}

std::string bytes_text(std::optional<std::uint64_t> bytes) {
  return bytes ? lockstep::bytes_text(*bytes) : "-";
}

}  // namespace lockstep::doctor
