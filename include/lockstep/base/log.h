// SPDX-License-Identifier: BSD-3-Clause
#pragma once

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

}  // namespace lockstep
