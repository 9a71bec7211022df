// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "launch/options.h"

namespace lockstep::launch {

// Implements `lockstep run`: checks `options`, finds the program and a port, warns about more ranks than
// cores, and runs the ranks under run_guarded() and supervise(). Returns the exit code for the process.
// Throws ArgumentError, ProgramError or LaunchError before it starts a process.
int launch(const LaunchOptions& options);

}  // namespace lockstep::launch
