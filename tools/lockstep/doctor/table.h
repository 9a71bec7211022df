// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::cli {

/// Text in columns for people to read.
class Table {
 public:
  struct Column {
    std::string title;
    bool right = false;        ///< numbers stand to the right
    bool may_shorten = false;  ///< when the table is too wide
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  /// A cell for each column, or fewer; what is missing is empty.
  void add(std::vector<std::string> cells);
  /// A line that runs through all columns from the second on.
  void add_note(const std::string& text);

  /// All lines, each ended. With `width`, no line is longer: the widest columns that may be shortened are
  /// cut, with "..." where something is missing.
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

/// `text` cut to `width` places, with "..." where that took something away. Counts code points of UTF-8.
std::string shortened(const std::string& text, std::size_t width);

/// Places of the terminal that stdout is; nullopt when it is none.
std::optional<std::size_t> terminal_width();

/// "1.5 GiB"; "-" for nothing.
std::string bytes_text(std::optional<std::uint64_t> bytes);

}  // namespace lockstep::cli
