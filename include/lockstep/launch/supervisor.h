// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include <lockstep/launch/options.h>

namespace lockstep::launch {

/// Runs this node's ranks, again after failures where the run allows it, passes their output on, and returns
/// when no process of theirs is left, background ones included: the exit code for the launch. `file` is the
/// program, with a slash in its name; `is_meeting_point`: the nodes meet at this launcher.
///
/// - All ranks of all nodes exit with 0: 0. What they left running is asked to stop (SIGTERM), after the
/// grace
///   period killed.
/// - A rank fails: the others, on all nodes, are stopped in the same way, and started again while
/// max_restarts
///   allows. After that a report on stderr ends with the rank that failed first; its exit code, or 128 + the
///   signal that killed it.
/// - One of the stop signals: passed on to every rank's process group, then as above; a further SIGINT or
/// SIGQUIT
///   kills at once; 128 + the signal.
/// - Nobody reads stdout any more: as if SIGPIPE had come.
/// - `launcher` (a pidfd) becomes readable: everything is killed at once.
///
/// REQUIRES to run as `body` of run_guarded(). Throws ProgramError or LaunchError when a rank cannot be
/// started or the other nodes cannot be met, with nothing left behind.
int supervise(const LaunchOptions& options, const std::string& file, bool is_meeting_point, int launcher);

}  // namespace lockstep::launch
