// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <map>
#include <string>
#include <sys/types.h>
#include <vector>

#include <lockstep/base/unique_fd.h>

namespace lockstep::launch {

struct RankCommand {
  std::string file{};                                ///< has a slash
  std::vector<std::string> arguments{};              ///< from argv[0] on
  std::map<std::string, std::string> environment{};  ///< set on top of this process's
  std::vector<int> cpus{};                           ///< where it may run; empty: where this process may
};

struct RankProcess {
  pid_t pid = -1;
  UniqueFd out{};  ///< what it writes to stdout
  UniqueFd err{};  ///< what it writes to stderr
};

/// Starts one rank, a child that leads a session and process group of its own (as torchrun's do), so that
/// everything it starts can be signalled with it and Ctrl-C reaches it only through the launcher. Its stdin
/// is /dev/null: ranks that raced for one terminal's input would each get a random part of it. It dies with
/// this process. Returns when the program runs; throws ProgramError when it cannot be executed and
/// LaunchError when the system refuses a process or a pipe.
RankProcess start_rank(const RankCommand& command);

}  // namespace lockstep::launch
