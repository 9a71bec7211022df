// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace lockstep::testing {

struct PythonOptions {
  std::vector<std::string> args = {};
  std::map<std::string, std::string> env = {};  ///< added to this process's environment
  std::chrono::seconds timeout{100};            ///< the watchdog: afterwards the script is killed
};

/// Runs a script with the live Python that has PyTorch, the oracle of the parity tests, and returns its
/// stdout. `script` is relative to tests/. Throws, which fails a test, showing the script's stderr unless it
/// exits with 0. The script dies with this process.
std::string run_python(const std::string& script, const PythonOptions& options = {});

}  // namespace lockstep::testing
