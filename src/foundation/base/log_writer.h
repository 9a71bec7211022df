// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string_view>

namespace lockstep {

// Writes a line of log(), with its newline, to stderr. Called by any thread.
using LogWriter = void (*)(std::string_view line);

// In place of one write(2); nullptr: that again.
void set_log_writer(LogWriter writer);

}  // namespace lockstep
