// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include "observe/processes.h"
#include "observe/read_run.h"

namespace lockstep::observe {

// The runs of this user on this host. A rank that shares no memory with another one is a run of its own.
std::vector<ObservedRun> find_runs(const std::vector<Process>& processes);

// All of them as one run, as its launcher sees it. Those of another version of Lockstep give only the problem.
ObservedRun joined(std::vector<ObservedRun> runs);

// The run that `name` means: the PID of a rank or of a process above it such as its launcher, or the launcher's
// --run-id; empty: the only run. Throws Error that says which runs there are, or why the process cannot be seen.
ObservedRun find_run(const std::string& name);

}  // namespace lockstep::observe
