// SPDX-License-Identifier: BSD-3-Clause
#include "base/log_line.h"

#include <fmt/format.h>

namespace lockstep {
namespace {

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

}  // namespace lockstep
