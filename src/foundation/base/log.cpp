// SPDX-License-Identifier: BSD-3-Clause
#include <atomic>
#include <optional>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/base/log.h>
#include <lockstep/base/world.h>

#include "base/env.h"
#include "base/process_state.h"

namespace lockstep {
namespace {

std::atomic<LogWriter> writer_of_lines{nullptr};

LogLevel threshold() {
  const auto name = Env().get("LOCKSTEP_LOG_LEVEL").value_or("info");
  if (name == "debug") return LogLevel::debug;
  if (name == "warning") return LogLevel::warning;
  if (name == "error") return LogLevel::error;
  return LogLevel::info;
}

std::optional<int> own_rank() {
  const World world = current_world();
  return world.size > 1 ? std::optional(world.rank) : std::nullopt;
}

bool names_rank(std::string_view message, int rank) {
  return message.find(fmt::format("rank {} of ", rank)) != std::string_view::npos ||
         message.starts_with(fmt::format("rank {}: ", rank));
}

std::string prefix(LogLevel level, std::optional<int> rank) {
  std::string text = rank ? fmt::format("[lockstep rank {}] ", *rank) : "[lockstep] ";
  if (level == LogLevel::warning) text += "warning: ";
  if (level == LogLevel::error) text += "error: ";
  return text;
}

}  // namespace

std::string log_line(LogLevel level, std::string_view message, std::optional<int> rank) {
  if (rank && names_rank(message, *rank)) rank.reset();
  return fmt::format("{}{}\n", prefix(level, rank), message);
}

void log(LogLevel level, std::string_view message) {
  if (!is_logged(level)) return;
  const std::string line = log_line(level, message, own_rank());
  if (const auto writer = writer_of_lines.load()) return writer(line);
  // One write(2) a line, so that lines of several threads and processes do not tear.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

bool is_logged(LogLevel level) { return level >= threshold(); }

void set_log_writer(LogWriter writer) { writer_of_lines = writer; }

}  // namespace lockstep
