// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string_view>

#include <lockstep/base/log.h>

namespace lockstep {

// Writes a line of log(), with its newline, to stderr. Called by any thread.
using LogWriter = void (*)(std::string_view line);

// In place of one write(2); nullptr: that again.
void set_log_writer(LogWriter writer);

// Whether log() writes lines of this level.
bool is_logged(LogLevel level);

}  // namespace lockstep
