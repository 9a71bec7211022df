// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <map>
#include <string>
#include <sys/types.h>
#include <vector>

#include <lockstep/base/env.h>
#include <lockstep/base/error.h>

#include "base/unique_fd.h"

namespace lockstep::launch {

struct RankCommand {
  std::string file{};                                // has a slash
  std::vector<std::string> arguments{};              // from argv[0] on
  std::map<std::string, std::string> environment{};  // in addition to this process's
  std::vector<int> cpus{};                           // its affinity; empty: that of this process
};

struct RankProcess {
  pid_t pid = -1;
  UniqueFd out{};  // the read end of its stdout
  UniqueFd err{};  // the read end of its stderr
};

// Starts one rank, a child that leads its own session and process group (as torchrun's do), so that its
// children can be signalled with it and Ctrl-C reaches it only through the launcher. Its stdin is /dev/null,
// because ranks would compete for the input of a terminal. It dies with this process. Returns when the
// program runs. Throws ProgramError when it cannot be executed, and LaunchError when the system refuses a
// process or a pipe.
RankProcess start_rank(const RankCommand& command);

// The program cannot be executed; no process was started. `exit_code()`: as in a shell.
class ProgramError : public LaunchError {
 public:
  static constexpr int kNotFound = 127;
  static constexpr int kNotExecutable = 126;

  ProgramError(const std::string& message, int exit_code) : LaunchError(message), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

// The file that execvp(3) would run for `name`: `name` itself if it has a slash, else the first executable
// file in PATH. Throws ProgramError with the reason if there is none.
std::string find_program(const std::string& name, const Env& env);

}  // namespace lockstep::launch
