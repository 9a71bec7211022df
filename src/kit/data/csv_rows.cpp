// SPDX-License-Identifier: BSD-3-Clause
#include "data/csv_rows.h"

#include <algorithm>

#include "base/throw_error.h"

namespace lockstep::data {
namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

}  // namespace

CsvRows::CsvRows(std::string_view text, char delimiter, const std::string& name)
    : left_(text), delimiter_(delimiter), name_(name) {
  if (std::string_view("\"\r\n\0", 4).find(delimiter) != std::string_view::npos) {
    throw ArgumentError("CsvDataset: the delimiter cannot be a quote or the end of a line");
  }
  if (left_.starts_with(kByteOrderMark)) left_.remove_prefix(kByteOrderMark.size());
}

bool CsvRows::at_line_end() const { return left_.starts_with('\n') || left_.starts_with("\r\n"); }

void CsvRows::skip_line_end() {
  left_.remove_prefix(left_.starts_with('\r') ? 2 : 1);
  ++line_;
}

bool CsvRows::next() {
  while (at_line_end()) skip_line_end();
  if (left_.empty()) return false;
  row_line_ = line_;
  read_row();
  return true;
}

void CsvRows::read_row() {
  fields_.clear();
  unquoted_.clear();
  while (true) {
    fields_.push_back(left_.starts_with('"') ? read_quoted_field() : read_field());
    if (left_.empty()) return;
    if (at_line_end()) return skip_line_end();
    left_.remove_prefix(1);  // the delimiter
  }
}

std::string_view CsvRows::read_field() {
  const char ends[] = {delimiter_, '\n'};
  auto size = std::min(left_.find_first_of({ends, 2}), left_.size());
  if (size > 0 && size < left_.size() && left_[size] == '\n' && left_[size - 1] == '\r') --size;
  const auto field = left_.substr(0, size);
  left_.remove_prefix(size);
  return field;
}

std::string_view CsvRows::read_quoted_field() {
  const auto line = line_;
  left_.remove_prefix(1);
  std::string* pieces = nullptr;  // what was before doubled quotes
  while (true) {
    const auto size = left_.find('"');
    if (size == std::string_view::npos) {
      throw_error<DataError>("{}: line {}: a quote is not closed", name_, line);
    }
    const auto piece = left_.substr(0, size);
    line_ += std::ranges::count(piece, '\n');
    left_.remove_prefix(size + 1);
    if (!left_.starts_with('"')) {
      if (!left_.empty() && !left_.starts_with(delimiter_) && !at_line_end()) {
        throw_error<DataError>("{}: line {}: text follows a closing quote", name_, line_);
      }
      return pieces == nullptr ? piece : std::string_view(pieces->append(piece));
    }
    if (pieces == nullptr) pieces = &unquoted_.emplace_back();
    pieces->append(piece).push_back('"');
    left_.remove_prefix(1);
  }
}

}  // namespace lockstep::data
