// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include <lockstep/base/error.h>

#include "base/env.h"
#include "base/sockets.h"
#include "launch/guard.h"
#include "launch/options.h"

namespace lockstep::launch {

// The program cannot be executed; no process was started. `exit_code()`: as in a shell.
class ProgramError : public LaunchError {
 public:
  static constexpr int kNotFound = 127;
  static constexpr int kNotExecutable = 126;

  explicit ProgramError(const std::string& message, int exit_code)
      : LaunchError(message), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

// The file that execvp(3) would run for `name`: `name` itself if it has a slash, else the first executable
// file in PATH. Throws ProgramError with the reason if there is none.
std::string find_program(const std::string& name, const Env& env);

// The port for rank 0: master_port on one node, else a free one. Throws LaunchError if it is taken.
ReservedPort reserve_port(const LaunchOptions& options);

// Implements `lockstep run`: checks the options, finds the program and a port, warns about more ranks than
// cores, and runs the ranks under run_guarded() and supervise(). Returns the exit code for the process.
// Throws ArgumentError, ProgramError or LaunchError before it starts a process. Each of `beside` runs in a thread of
// this process while the ranks' supervisor does, until the descriptor that it gets becomes readable.
int launch(const LaunchOptions& given, std::vector<GuardOptions::Companion> beside = {});

}  // namespace lockstep::launch
