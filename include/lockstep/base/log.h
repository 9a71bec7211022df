// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <sstream>
#include <string_view>

namespace lockstep {

/// How much the log shows: messages of this level and of those above it. Environment: LOCKSTEP_LOG_LEVEL.
enum class LogLevel {
  debug,    ///< all messages
  info,     ///< what a run does
  warning,  ///< what a user should look at
  error,    ///< what went wrong
};

/// Writes one line to stderr: "[lockstep] message", with the rank after init(). Lines below the level in the
/// environment variable LOCKSTEP_LOG_LEVEL (debug, info, warning or error; default info) are dropped. Safe
/// from any thread.
void log(LogLevel level, std::string_view message);
/// One line of several parts, which are written one behind the other as by TORCH_WARN:
/// `log(LogLevel::info, "epoch ", epoch, ": loss ", loss);`
template <typename First, typename Second, typename... Others>
void log(LogLevel level, const First& first, const Second& second, const Others&... others) {
  std::ostringstream line;
  line << first << second;
  (void)(line << ... << others);
  log(level, std::string_view(line.view()));
}

/// Python's functions of the module `logging`, which write the parts of a line as log() does.
namespace logging {

/// log(LogLevel::debug, ...). Python: `logging.debug`.
template <typename... Parts>
void debug(const Parts&... parts) {
  log(LogLevel::debug, parts...);
}
/// log(LogLevel::info, ...). Python: `logging.info`.
template <typename... Parts>
void info(const Parts&... parts) {
  log(LogLevel::info, parts...);
}
/// log(LogLevel::warning, ...). Python: `logging.warning`.
template <typename... Parts>
void warning(const Parts&... parts) {
  log(LogLevel::warning, parts...);
}
/// log(LogLevel::error, ...). Python: `logging.error`.
template <typename... Parts>
void error(const Parts&... parts) {
  log(LogLevel::error, parts...);
}

}  // namespace logging

}  // namespace lockstep
