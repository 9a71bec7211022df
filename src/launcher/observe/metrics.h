// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include "observe/run.h"

namespace lockstep::observe {

// What a launcher knows of its ranks.
struct LauncherState {
  int ranks = 0;          // that it starts on this host
  int restarts = 0;       // of its ranks until now
  std::string problem{};  // why ranks cannot be read; empty if they can
};

// The metrics of a run's ranks on one host in Prometheus' text format 0.0.4. docs/observe.md lists their names.
// Of two ranks with one number the first one is shown.
std::string metrics_text(const Run& run, const LauncherState& launcher);

}  // namespace lockstep::observe
