// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include "base/sockets.h"
#include "launch/options.h"

namespace lockstep::launch {

// Implements `lockstep run`: checks `options`, finds the program and a port, warns about more ranks than
// cores, and runs the ranks under run_guarded() and supervise(). Returns the exit code for the process.
// Throws ArgumentError, ProgramError or LaunchError before it starts a process.
int launch(const LaunchOptions& options);

// Runs this node's ranks, restarts them after failures as the run allows, and forwards their output. Returns
// the exit code of the launch when no process is left, background processes of ranks included. `file`: the
// program, with a slash in its name; `is_host`: the coordinator of the run is at this launcher.
//
// - All ranks of all nodes exit with 0: 0. Processes that they left get SIGTERM and, after the grace period,
//   SIGKILL.
// - A rank fails: the ranks of all nodes are stopped in the same way, and restarted while max_restarts
//   allows. After that the last line of a report on stderr names the rank that failed first; its exit code,
//   or 128 + the signal that killed it.
// - A stop signal: it is sent to every rank's process group, then as above. A second SIGINT or SIGQUIT kills
//   the ranks immediately. 128 + the signal.
// - stdout has no reader any more: as for the signal SIGPIPE.
// - `parent` (a pidfd) becomes readable: all processes are killed immediately.
//
// REQUIRES to run as the body of run_guarded(). Throws ProgramError or LaunchError when a rank cannot be
// started or the other nodes cannot be reached; no process is left then.
int supervise(const LaunchOptions& options, const std::string& file, bool is_host, int parent);

// The port for rank 0: master_port on one node, else a free one. Throws LaunchError if it is taken.
ReservedPort reserve_port(const LaunchOptions& options);

}  // namespace lockstep::launch
