// SPDX-License-Identifier: BSD-3-Clause
#include "observe/launched_ranks.h"

#include <algorithm>
#include <iterator>
#include <unistd.h>

#include "base/host.h"
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

std::size_t living_ranks(const std::vector<ObservedRun>& runs) {
  std::size_t count = 0;
  for (const auto& run : runs) count += run.progress.size();
  return count;
}

}  // namespace

std::string LaunchedRanks::metrics() {
  auto runs = find_runs(processes_of(pids_));
  if (living_ranks(runs) < static_cast<std::size_t>(count_)) runs = find_runs(processes_below(::getpid()));
  // A phase that begins after this moment does not count yet: otherwise its counter could go back.
  Run all{.id = run_id_, .host = host_name(), .taken_at = steady_now()};
  std::string problem;
  pids_.clear();
  for (const auto& each : runs) {
    pids_.insert(pids_.end(), each.pids.begin(), each.pids.end());
    restarts_ = std::max(restarts_, each.restarts);
    if (!each.problem.empty()) problem = each.problem;
    auto run = each.read();
    std::ranges::move(run.ranks, std::back_inserter(all.ranks));
  }
  std::ranges::stable_sort(all.ranks, {}, &Rank::rank);
  return metrics_text(all, {.ranks = count_, .restarts = restarts_, .problem = problem});
}

}  // namespace lockstep::observe
