// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <mutex>
#include <span>
#include <system_error>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/log.h>
#include <lockstep/base/mutex.h>
#include <lockstep/base/world.h>
#include <lockstep/training/logging.h>

#include "base/atomic_file.h"
#include "base/caller_place.h"
#include "base/launched_rank.h"
#include "base/rank_progress.h"
#include "base/text.h"
#include "base/throw_error.h"
#include "training/append_file.h"
#include "training/terminal.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// A logger to a Log(path, first step), which it makes at the first record.
template <typename Log>
Logger logger_to(fs::path path, const LoggerOptions& options) {
  const auto write = [path = std::move(path), options, log = std::shared_ptr<Log>()](
                         std::int64_t step, const Scalars& scalars) mutable {
    if (!log) log = std::make_shared<Log>(options.every_rank ? Log::path_of_rank(path) : path, step);
    log->write(step, scalars);
  };
  return Logger(write, options);
}

void write_scalars(SummaryWriter& writer, std::int64_t step, const Scalars& scalars) {
  for (const auto& [name, value] : scalars) writer.add_scalar(name, value, step);
}

class TensorBoardLog {
 public:
  TensorBoardLog(const fs::path& log_dir, std::int64_t first_step)
      : writer_(log_dir, {.purge_step = first_step}) {}

  // TensorBoard shows each folder as a run.
  static fs::path path_of_rank(const fs::path& log_dir) {
    return log_dir / fmt::format("rank{}", current_world().rank);
  }

  void write(std::int64_t step, const Scalars& scalars) { write_scalars(writer_, step, scalars); }

 private:
  SummaryWriter writer_;
};

// "log.csv" as "log.rank1.csv" on rank 1.
fs::path of_this_rank(const fs::path& file) {
  const auto name =
      fmt::format("{}.rank{}{}", file.stem().string(), current_world().rank, file.extension().string());
  return file.parent_path() / name;
}

// Throws ArgumentError for a name that a line cannot have.
void check_names(const char* logger, const Scalars& scalars) {
  for (const auto& [name, value] : scalars) {
    if (name == "step" || name.find_first_of("\r\n") != std::string::npos) {
      throw_error<ArgumentError>("{}: {:?} cannot be the name of a number", logger, name);
    }
  }
}

// The lines of a log that a run keeps that continues at `step`: the whole ones before the first of that step
// or a later one. Empty if there is no file. `step_of` returns nullopt for a line of another kind, which is
// an Error.
std::string kept_lines(const fs::path& file, int header_lines, std::int64_t step,
                       const std::function<std::optional<std::int64_t>(std::string_view)>& step_of) {
  std::ifstream stream(file, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(stream), {});
  std::size_t kept = 0;
  for (int line = 1;; ++line) {
    const auto end = text.find('\n', kept);
    if (end == std::string::npos) break;
    if (line > header_lines) {
      const auto here = step_of(std::string_view(text).substr(kept, end - kept));
      if (!here) {
        throw_error<Error>("{} cannot be continued: line {} is not one of this kind of log; use another file",
                           file.string(), line);
      }
      if (*here >= step) break;
    }
    kept = end + 1;
  }
  if (!text.empty() && text.find('\n') == std::string::npos) {
    throw_error<Error>("{} cannot be continued: it has no whole line; use another file", file.string());
  }
  text.resize(kept);
  return text;
}

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
    const auto text = kept_lines(file_, 1, first_step, step_of_row);
    if (!text.empty()) columns_ = columns_of(std::string_view(text).substr(0, text.find('\n')));
    if (!columns_.empty() && columns_.front() != "step") {
      throw_error<Error>("{} cannot be continued: its first column is not step; use another file",
                         file_.string());
    }
    rows_.emplace(file_, text.size());
  }

  static fs::path path_of_rank(const fs::path& file) { return of_this_rank(file); }

  void write(std::int64_t step, const Scalars& scalars) {
    check_names("csv_logger", scalars);
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
    const auto text = kept_lines(file_, 1, std::numeric_limits<std::int64_t>::max(), step_of_row);
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
      throw_error<Error>("{} cannot be written: {}", file_.string(), errno_text(error.code().value()));
    }
    rows_.emplace(file_, wider.size());
  }

  fs::path file_;
  Columns columns_{};
  std::optional<training::AppendFile> rows_{};
};

constexpr std::string_view kBegin = R"({"step": )";

std::optional<std::int64_t> step_of_object(std::string_view line) {
  if (!line.starts_with(kBegin)) return std::nullopt;
  line.remove_prefix(kBegin.size());
  return parse_number<std::int64_t>(line.substr(0, line.find_first_of(",}")));
}

std::string json_name(const std::string& name) {
  using Json = nlohmann::json;
  return Json(name).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string json_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return fmt::format("{}", value);
}

class JsonLinesLog {
 public:
  JsonLinesLog(const fs::path& file, std::int64_t first_step)
      : lines_(file, kept_lines(file, 0, first_step, step_of_object).size()) {}

  static fs::path path_of_rank(const fs::path& file) { return of_this_rank(file); }

  void write(std::int64_t step, const Scalars& scalars) {
    check_names("json_lines_logger", scalars);
    auto line = fmt::format("{}{}", kBegin, step);
    for (const auto& [name, value] : scalars) {
      line += fmt::format(", {}: {}", json_name(name), json_number(value));
    }
    lines_.append(line + "}\n");
  }

 private:
  training::AppendFile lines_;
};

}  // namespace

struct Logger::State {
  Write write LOCKSTEP_GUARDED_BY(mutex);
  LoggerOptions options;
  Mutex mutex{};
};

Logger::Logger(Write write, const LoggerOptions& options)
    : state_(std::make_shared<State>(std::move(write), options)) {}

void Logger::log(std::int64_t step, const Scalars& scalars) const {
  const auto world = shared_world("Logger");
  if (!state_->options.every_rank && world.rank != 0) return;
  const MutexLock lock(state_->mutex);
  state_->write(step, scalars);
}

Logger console_logger(const LoggerOptions& options) {
  const auto write = [options](std::int64_t step, const Scalars& scalars) {
    std::vector<std::string> parts;
    for (const auto& [name, value] : scalars) parts.push_back(fmt::format("{} {:.6g}", name, value));
    const auto rank = options.every_rank ? fmt::format("rank {}, ", current_world().rank) : "";
    training::write_line(STDOUT_FILENO, fmt::format("{}step {}: {}\n", rank, step, fmt::join(parts, ", ")));
  };
  return Logger(write, options);
}

Logger tensorboard_logger(fs::path log_dir, const LoggerOptions& options) {
  return logger_to<TensorBoardLog>(std::move(log_dir), options);
}

Logger tensorboard_logger(SummaryWriter writer, const LoggerOptions& options) {
  return Logger(
      [writer = std::move(writer)](std::int64_t step, const Scalars& scalars) mutable {
        write_scalars(writer, step, scalars);
      },
      options);
}

Logger csv_logger(fs::path file, const LoggerOptions& options) {
  return logger_to<CsvLog>(std::move(file), options);
}

Logger json_lines_logger(fs::path file, const LoggerOptions& options) {
  return logger_to<JsonLinesLog>(std::move(file), options);
}

namespace {

// A number that is not shown is no reason to end a run.
void warn_about_many_numbers(std::string_view name) {
  static std::once_flag once;
  std::call_once(once, [name] {
    log(LogLevel::warning,
        fmt::format("report: \"{}\" is not shown: a rank reports at most 32 names, those of Trainer included",
                    name));
  });
}

}  // namespace

void report(std::initializer_list<std::pair<std::string_view, double>> numbers, std::source_location where) {
  for (const auto& [name, value] : numbers) {
    if (!name.empty() && name.size() <= kNameBytes) {
      if (!report_number(name, value)) warn_about_many_numbers(name);
      continue;
    }
    const CallerPlace place(where);
    throw_error<ArgumentError>("report: the name \"{}\" has {} bytes; it must have 1 to {}", name,
                               name.size(), kNameBytes);
  }
}

}  // namespace lockstep
