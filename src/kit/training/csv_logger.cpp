// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <limits>
#include <span>
#include <system_error>

#include <fmt/ranges.h>

#include "base/atomic_file.h"
#include "base/text.h"
#include "base/throw_error.h"
#include "training/append_file.h"
#include "training/line_log.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Columns = std::vector<std::string>;

std::string quoted(const std::string& name) {
  if (name.find_first_of(",\"") == std::string::npos) return name;
  std::string text = "\"";
  for (const char letter : name) text.append(letter == '"' ? 2 : 1, letter);
  return text + '"';
}

Columns columns_of(std::string_view header) {
  Columns columns(1);
  bool in_quotes = false;
  for (std::size_t i = 0; i < header.size(); ++i) {
    const char letter = header[i];
    if (letter == ',' && !in_quotes) {
      columns.emplace_back();
    } else if (letter != '"') {
      columns.back() += letter;
    } else if (in_quotes && header.substr(i + 1).starts_with('"')) {
      columns.back() += header[++i];
    } else {
      in_quotes = !in_quotes;
    }
  }
  return columns;
}

std::optional<std::int64_t> step_of_row(std::string_view line) {
  return parse_number<std::int64_t>(line.substr(0, line.find(',')));
}

class CsvLog {
 public:
  CsvLog(fs::path file, std::int64_t first_step) : file_(std::move(file)) {
    const auto text = training::kept_lines(file_, 1, first_step, step_of_row);
    if (!text.empty()) columns_ = columns_of(std::string_view(text).substr(0, text.find('\n')));
    if (!columns_.empty() && columns_.front() != "step") {
      throw_error<Error>("{} cannot be continued: its first column is not step; use another file",
                         file_.string());
    }
    rows_.emplace(file_, text.size());
  }

  static fs::path path_of_rank(const fs::path& file) { return training::of_this_rank(file); }

  void write(std::int64_t step, const Scalars& scalars) {
    training::check_names("csv_logger", scalars);
    add_columns(scalars);
    auto row = std::to_string(step);
    for (const auto& name : std::span(columns_).subspan(1)) {
      const auto found = scalars.find(name);
      row += found == scalars.end() ? "," : fmt::format(",{}", found->second);
    }
    rows_->append(row + '\n');
  }

 private:
  void add_columns(const Scalars& scalars) {
    const auto old = columns_.size();
    if (columns_.empty()) columns_.emplace_back("step");
    for (const auto& [name, value] : scalars) {
      if (std::ranges::find(columns_, name) == columns_.end()) columns_.push_back(name);
    }
    if (columns_.size() == old) return;
    try {
      rewrite(std::string(columns_.size() - old, ','));
    } catch (...) {
      columns_.resize(old);
      throw;
    }
  }

  // With the present columns; `cells` end the rows that the file has.
  void rewrite(const std::string& cells) {
    const auto text = training::kept_lines(file_, 1, std::numeric_limits<std::int64_t>::max(), step_of_row);
    std::vector<std::string> names(columns_.size());
    std::ranges::transform(columns_, names.begin(), quoted);
    auto wider = fmt::format("{}\n", fmt::join(names, ","));
    const auto lines = split(text, '\n');
    for (std::size_t i = 1; i < lines.size(); ++i) wider += lines[i] + cells + '\n';
    try {
      AtomicFile whole(file_, {.sync = false});
      whole.write(std::as_bytes(std::span(wider)));
      whole.commit();
    } catch (const std::system_error& error) {
      throw_error<Error>("{} cannot be written: {}", file_.string(), error.code().message());
    }
    rows_.emplace(file_, wider.size());
  }

  fs::path file_;
  Columns columns_{};
  std::optional<training::AppendFile> rows_{};
};

}  // namespace

Logger csv_logger(fs::path file, LoggerOptions options) {
  return training::logger_to<CsvLog>(std::move(file), options);
}

}  // namespace lockstep
