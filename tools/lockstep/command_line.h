// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

namespace lockstep::cli {

constexpr int kUsageError = 2;

// The `lockstep` command with `arguments` (argv without argv[0]). Returns the exit code; errors are one line
// on stderr. Exit code 2: wrong command line.
int run(const std::vector<std::string>& arguments);

}  // namespace lockstep::cli
