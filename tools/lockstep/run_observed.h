// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/env.h"
#include "launch/options.h"
#include "run_arguments.h"

namespace lockstep::cli {

// nullopt without --metrics-port. Its `text` is left to the caller.
std::optional<launch::MetricsOptions> metrics_options(const RunArguments& arguments, const Env& env);

// launch() with the metrics and the report that `arguments` ask for. `words`: the whole command line of `lockstep`.
int launch_here(const RunArguments& arguments, const std::vector<std::string>& words);

}  // namespace lockstep::cli
