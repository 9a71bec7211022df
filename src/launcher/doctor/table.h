// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::doctor {

// A text table.
class Table {
 public:
  struct Column {
    std::string title;
    bool right = false;        // right-aligned
    bool may_shorten = false;  // if the table is too wide
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // One cell per column; missing cells are empty.
  void add(std::vector<std::string> cells);
  // A line that spans all columns from the second on.
  void add_note(const std::string& text);

  // All lines. With `width`, no line is longer: the widest columns that may be shortened are truncated with
  // "...".
  std::string text(std::optional<std::size_t> width) const;

 private:
  struct Row {
    std::vector<std::string> cells;
    bool is_note = false;
  };

  std::vector<std::size_t> widths(std::optional<std::size_t> width) const;
  std::string line(const Row& row, const std::vector<std::size_t>& widths) const;

  std::vector<Column> columns_;
  std::vector<Row> rows_;
};

// `text` truncated to `width` UTF-8 code points, with "...".
std::string shortened(const std::string& text, std::size_t width);

// Columns of the terminal on stdout; nullopt if it is not a terminal.
std::optional<std::size_t> terminal_width();

// "1.5 GiB"; "-" for nullopt.
std::string bytes_text(std::optional<std::uint64_t> bytes);

}  // namespace lockstep::doctor
