// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/deadline.h"

namespace lockstep::data {

// Runs a command from the PATH in `folder`, without stdin, and waits for it. The command does not outlive
// this process. Throws DataError with the end of its output when it cannot be started or fails; kills it and
// throws at the deadline.
void run_command(const std::vector<std::string>& command, const std::filesystem::path& folder,
                 const Deadline& deadline);

}  // namespace lockstep::data
