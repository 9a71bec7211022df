// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <lockstep/base/log.h>

namespace lockstep {

// A line of log(), with its newline. `rank`: of this process among several; a message that names it gets no
// second one.
std::string log_line(LogLevel level, std::string_view message, std::optional<int> rank);

}  // namespace lockstep
