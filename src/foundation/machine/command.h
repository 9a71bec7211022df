// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstddef>
#include <limits>
#include <map>
#include <string>
#include <sys/types.h>
#include <vector>

#include "base/deadline.h"
#include "base/unique_fd.h"

namespace lockstep::machine {

struct Program {
  std::string file{};                                // found on PATH, if it has no slash
  std::vector<std::string> arguments{};              // from argv[0] on
  std::string folder{};                              // its working directory; empty: that of this process
  std::map<std::string, std::string> environment{};  // in addition to this process's
  std::vector<int> cpus{};                           // its affinity; empty: that of this process
  int in = -1;                                       // its stdin; -1: /dev/null
};

struct RunningProgram {
  pid_t pid = -1;
  UniqueFd out{};  // the read end of its stdout
  UniqueFd err{};  // the read end of its stderr
  int error = 0;   // not running: the errno value of exec; ETIMEDOUT at the deadline
};

// Starts a program as a child that leads its own session and process group, so that its children can be
// signalled with it and Ctrl-C does not reach it. Its signals have their default actions, and it dies with
// this process. Returns when exec has succeeded or failed; the caller reaps the
// child in both cases. Throws std::system_error when the system refuses a process or a pipe.
RunningProgram start_program(const Program& program, const Deadline& deadline);

struct CommandResult {
  bool started = true;     // false: `problem` says why not
  bool timed_out = false;  // it ran past its deadline and was killed
  bool too_long = false;   // it printed more than it may and was killed
  int signal = 0;          // that ended it
  int exit_code = 0;       // 128 + signal when one ended it; 127 not found, 126 not executable
  std::string out{};       // its stdout
  std::string err{};       // its stderr
  std::string problem{};   // why it did not succeed, in one line; empty when it did

  bool succeeded() const { return problem.empty(); }
};

// Runs a program, found on PATH, in `folder` with /dev/null as its stdin, and waits for its end. At `timeout`
// it is killed with the processes that it has started. Failures of the program are part of the result,
// and so is a pipe or process that the system refuses. It is also killed when its stdout or stderr has more than
// `most_output` bytes. Safe from any thread.
CommandResult run_command(const std::vector<std::string>& words, std::chrono::milliseconds timeout,
                          const std::string& folder = {},
                          std::size_t most_output = std::numeric_limits<std::size_t>::max());

// Whether PATH has a program of this name.
bool is_on_path(const std::string& name);

// The words of `command`, which runs its last argument on the host that the argument before names. Empty:
// ssh without prompts, which notices within 15 s that a host is silent.
std::vector<std::string> remote_shell(const std::string& command);

// `word` for a POSIX shell.
std::string quoted(const std::string& word);

// The address of a host for other hosts: without the user, as in user@host.
std::string address_part(const std::string& host);

}  // namespace lockstep::machine
