// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <lockstep/base/deadline.h>

namespace lockstep::data {

/// Runs a command found on the PATH, in `folder`, with no stdin, and waits for it. It does not outlive this
/// process. Throws DataError with the end of its output when it cannot be started, fails, or is still running
/// at the deadline; it is killed then.
void run_command(const std::vector<std::string>& command, const std::filesystem::path& folder,
                 const Deadline& deadline);

}  // namespace lockstep::data
