// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <string>
#include <utility>
#include <vector>

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

// The ranks that this process and those below it have started, as metrics.
class LaunchedRanks {
 public:
  // `count`: ranks on this host; `run_id`: the launcher's, empty without one; `restarts`: how often it has restarted
  // ranks until now.
  LaunchedRanks(int count, std::string run_id, const std::atomic<int>& restarts)
      : count_(count), run_id_(std::move(run_id)), restarts_(restarts) {}

  // Reads them now. Looks at other processes of this user only while less than `count` ranks are known.
  std::string metrics();

 private:
  int count_;
  std::string run_id_;
  const std::atomic<int>& restarts_;
  std::vector<int> pids_{};  // of the ranks, and of processes that have mapped their memory
};

}  // namespace lockstep::observe
