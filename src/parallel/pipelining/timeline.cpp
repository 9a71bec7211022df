// SPDX-License-Identifier: BSD-3-Clause
#include "pipelining/timeline.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>

#include "base/throw_error.h"
#include "pipelining/plan_walk.h"

namespace lockstep::pipelining {
namespace {

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace

Timeline summarize(std::vector<TimedAction> actions, int ranks) {
  std::stable_sort(actions.begin(), actions.end(), [](const TimedAction& a, const TimedAction& b) {
    return std::tie(a.rank, a.start) < std::tie(b.rank, b.start);
  });
  Timeline result;
  result.peak_microbatches.resize(static_cast<std::size_t>(ranks));
  double first = std::numeric_limits<double>::infinity(), busy = 0;
  for (const auto& each : actions) first = std::min(first, each.start);
  std::vector<int> active(result.peak_microbatches.size());
  for (auto& each : actions) {
    busy += each.end - each.start;
    each.start -= first;
    each.end -= first;
    result.step_time = std::max(result.step_time, each.end);
    const auto rank = static_cast<std::size_t>(each.rank);
    const auto type = each.action.computation_type;
    if (type == ComputationType::FORWARD)
      result.peak_microbatches[rank] = std::max(result.peak_microbatches[rank], ++active[rank]);
    if (ends_backward(type)) --active[rank];
  }
  if (result.step_time > 0) result.idle_share = 1 - busy / (ranks * result.step_time);
  result.actions = std::move(actions);
  return result;
}

std::vector<StageTimes> stage_times(const Timeline& timeline) {
  using enum ComputationType;
  std::map<int, std::map<ComputationType, std::vector<double>>> durations;
  for (const auto& each : timeline.actions)
    durations[each.action.stage_index][each.action.computation_type].push_back(each.end - each.start);
  std::vector<StageTimes> times;
  for (auto& [stage, all] : durations) {
    if (stage != static_cast<int>(times.size()) || !all.contains(FORWARD))
      throw_error<ArgumentError>("stage_times: the timeline has no forward of stage {}", times.size());
    auto& each = times.emplace_back(StageTimes{.forward = mean(all[FORWARD]), .input = 0, .weight = 0});
    if (all.contains(BACKWARD_WEIGHT)) {
      each.weight = mean(all[BACKWARD_WEIGHT]);
      if (all.contains(BACKWARD_INPUT)) each.input = mean(all[BACKWARD_INPUT]);
    } else if (all.contains(FULL_BACKWARD)) {
      each.input = each.weight = mean(all[FULL_BACKWARD]) / 2;
    }
  }
  return times;
}

}  // namespace lockstep::pipelining
