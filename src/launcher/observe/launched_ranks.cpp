// SPDX-License-Identifier: BSD-3-Clause
#include "observe/launched_ranks.h"

#include <unistd.h>

#include "observe/find_runs.h"
#include "observe/metrics.h"

namespace lockstep::observe {
namespace {

std::vector<Process> processes_of(const std::vector<int>& pids) {
  std::vector<Process> processes;
  for (const int pid : pids) {
    if (auto process = own_process(pid)) processes.push_back(std::move(*process));
  }
  return processes;
}

}  // namespace

std::string LaunchedRanks::metrics() {
  auto ranks = joined(find_runs(processes_of(pids_)));
  if (ranks.progress.size() < static_cast<std::size_t>(count_)) {
    ranks = joined(find_runs(processes_below(::getpid())));
  }
  pids_ = ranks.pids;
  // A phase that begins after this moment does not count yet: otherwise its counter could go back.
  const auto taken_at = steady_now();
  auto run = ranks.read();
  run.id = run_id_;
  run.taken_at = taken_at;
  return metrics_text(run, {.ranks = count_, .restarts = restarts_, .problem = ranks.problem});
}

}  // namespace lockstep::observe
