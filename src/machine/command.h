// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace lockstep::machine {

struct CommandResult {
  bool started = true;     // false: `problem` says why not
  bool timed_out = false;  // it ran past its deadline and was killed
  int exit_code = 0;       // 128 + signal when one ended it; 127 not found, 126 not executable
  std::string out{};       // its stdout
  std::string err{};       // its stderr
  std::string problem{};   // why it did not succeed, in one line; empty when it did

  bool succeeded() const { return problem.empty(); }
};

// Runs a program, found on PATH, with /dev/null as its stdin, and waits for its end. At `timeout` it is
// killed with the processes that it has started. Failures of the program are part of the result. Throws Error
// when the system refuses a pipe or process. Safe from any thread.
CommandResult run_command(const std::vector<std::string>& words, std::chrono::milliseconds timeout);

}  // namespace lockstep::machine
