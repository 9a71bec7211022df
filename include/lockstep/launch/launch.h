// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <lockstep/launch/options.h>

namespace lockstep::launch {

/// What `lockstep run` does: checks `options`, finds the program and a port, warns when there are more ranks
/// than cores, and runs the ranks under run_guarded() and supervise(). Returns the exit code for the process.
/// Throws ArgumentError, ProgramError or LaunchError before anything is started.
int launch(const LaunchOptions& options);

}  // namespace lockstep::launch
