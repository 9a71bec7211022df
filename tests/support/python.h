// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace lockstep::testing {

struct PythonOptions {
  std::vector<std::string> args = {};
  std::map<std::string, std::string> env = {};  ///< added to the environment after PyTorch was imported
  std::chrono::seconds timeout{100};            ///< the watchdog: afterwards the script is killed
};

/// Runs a script with the live Python that has PyTorch, the oracle of the parity tests, and returns its
/// stdout. `script` is relative to tests/. Throws, which fails a test, showing the script's stderr unless it
/// exits with 0. The script dies with this process. All scripts of a process are forks of one Python that has
/// imported PyTorch with OMP_NUM_THREADS=1.
std::string run_python(const std::string& script, const PythonOptions& options = {});

}  // namespace lockstep::testing
