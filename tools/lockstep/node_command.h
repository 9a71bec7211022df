// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "commands.h"

namespace lockstep::cli {

// `lockstep node`, which `lockstep run --hosts` starts on each host: executes the order on stdin.
Command node_command(CLI::App& app);

}  // namespace lockstep::cli
