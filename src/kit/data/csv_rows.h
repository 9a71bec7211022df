// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data {

// Splits the text of a CSV file into rows of fields.
class CsvRows {
 public:
  // `text` and `name`, which is for messages, must outlive the object. Throws ArgumentError for a delimiter
  // that cannot be one.
  CsvRows(std::string_view text, char delimiter, const std::string& name);

  // Reads the next row that is not blank; false at the end. Throws DataError for quotes that are not closed
  // or are followed by text.
  bool next();
  // The fields of the row, unquoted. They are valid until the next row.
  const std::vector<std::string_view>& fields() const { return fields_; }
  // The line on which the row begins, from 1.
  std::int64_t line() const { return row_line_; }

 private:
  void read_row();
  std::string_view read_field();
  std::string_view read_quoted_field();
  bool at_line_end() const;
  void skip_line_end();

  std::string_view left_;
  const char delimiter_;
  const std::string& name_;
  std::vector<std::string_view> fields_;
  std::deque<std::string> unquoted_;  // fields with doubled quotes
  std::int64_t line_ = 1;
  std::int64_t row_line_ = 1;
};

}  // namespace lockstep::data
