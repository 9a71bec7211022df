// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace lockstep::launch {

/// What one node's ranks run.
struct RankPlan {
  int rank = 0;
  std::map<std::string, std::string> environment{};  ///< set on top of this process's
};

struct SupervisorOptions {
  std::string file{};                    ///< the program, with a slash in its name
  std::vector<std::string> arguments{};  ///< from argv[0] on
  std::vector<RankPlan> ranks{};
  bool mark_lines = true;  ///< LaunchOptions::mark_lines
  std::chrono::milliseconds grace_period{5000};
};

/// Starts the ranks, passes their output on, and returns when no process of theirs is left, background ones
/// included: the exit code for the whole launch.
///
/// - All ranks exit with 0: 0. What they left running is asked to stop (SIGTERM), after the grace period
/// killed.
/// - A rank fails: the others are stopped in the same way; a report on stderr ends with the rank that failed
/// first;
///   its exit code, or 128 + the signal that killed it.
/// - SIGINT, SIGTERM, SIGQUIT or SIGHUP: passed on to every rank's process group, then as above; a further
/// SIGINT
///   or SIGQUIT kills at once; 128 + the signal.
/// - Nobody reads stdout any more: as if SIGPIPE had come.
/// - `launcher` (a pidfd) becomes readable: everything is killed at once.
///
/// REQUIRES to run as `body` of run_guarded(). Throws ProgramError or LaunchError when a rank cannot be
/// started, with nothing left behind.
int supervise(const SupervisorOptions& options, int launcher);

}  // namespace lockstep::launch
