// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <lockstep/base/env.h>

#include "launch/options.h"
#include "run_arguments.h"

namespace lockstep::cli {

// Sets the options of the rendezvous: nodes, master_addr, master_port and run_id.
void set_rendezvous(const RunArguments& arguments, const Env& env, launch::LaunchOptions& options);

}  // namespace lockstep::cli
