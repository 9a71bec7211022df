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

namespace {

using enum ComputationType;

constexpr double kNever = std::numeric_limits<double>::infinity();

class Clock {
 public:
  Clock(const Plan& plan, const std::vector<StageTimes>& times, double message_time)
      : plan_(plan),
        times_(times),
        message_time_(message_time),
        rank_of_(stage_to_rank(plan)),
        inputs_(plan, kNever),
        gradients_(plan, kNever),
        next_(plan.pipeline_order.size()),
        part_(next_.size()),
        now_(next_.size(), 0.0) {
    for (const auto& actions : plan.pipeline_order)
      for (const auto& action : actions)
        messages_ = messages_ || (action && is_send(action->computation_type));
  }

  Timeline run() {
    for (bool progress = true; progress;) {
      progress = false;
      for (std::size_t rank = 0; rank < next_.size(); ++rank) progress = advance(rank) || progress;
    }
    check_end();
    return summarize(std::move(done_), static_cast<int>(next_.size()));
  }

 private:
  // As far as possible. A message arrives after its SEND, if the plan has any.
  bool advance(std::size_t rank) {
    const auto before = std::pair(next_[rank], part_[rank]);
    const auto& actions = plan_.pipeline_order[rank];
    for (; next_[rank] < actions.size(); ++next_[rank], part_[rank] = 0) {
      const auto& action = actions[next_[rank]];
      if (!action) continue;
      const auto parts = std::max<std::size_t>(1, action->sub_actions.size());
      for (; part_[rank] < parts; ++part_[rank]) {
        if (!perform(rank, action->sub_actions.empty() ? *action : action->sub_actions[part_[rank]]))
          return before != std::pair(next_[rank], part_[rank]);
      }
    }
    return before != std::pair(next_[rank], part_[rank]);
  }

  bool perform(std::size_t rank, const Action& action) {
    const auto type = action.computation_type;
    const int stage = action.stage_index;
    if (type == SEND_F) deliver(inputs_, rank, stage + 1, action);
    if (type == SEND_B) deliver(gradients_, rank, stage - 1, action);
    if (type != FORWARD && type != BACKWARD_WEIGHT && !is_backward(type)) return true;
    double ready = 0;
    if (type == FORWARD && stage > 0) ready = inputs_.at(action);
    if (is_backward(type) && stage + 1 < plan_.num_stages) ready = gradients_.at(action);
    if (ready == kNever) return false;
    const double start = std::max(now_[rank], ready), end = start + duration(action);
    now_[rank] = end;
    done_.push_back({static_cast<int>(rank), action, start, end});
    if (type == FORWARD && without_message(stage, stage + 1)) deliver(inputs_, rank, stage + 1, action);
    if (is_backward(type) && without_message(stage, stage - 1)) deliver(gradients_, rank, stage - 1, action);
    return true;
  }

  bool without_message(int stage, int peer) const {
    if (peer < 0 || peer == plan_.num_stages) return false;
    return !messages_ || is_local(stage, peer);
  }
  bool is_local(int stage, int peer) const {
    return rank_of_[static_cast<std::size_t>(stage)] == rank_of_[static_cast<std::size_t>(peer)];
  }
  void deliver(PerMicrobatch<double>& arrivals, std::size_t rank, int to_stage, const Action& action) {
    arrivals.at(to_stage, *action.microbatch_index) =
        now_[rank] + (is_local(action.stage_index, to_stage) ? 0 : message_time_);
  }

  double duration(const Action& action) const {
    const auto& stage = times_[times_.size() == 1 ? 0 : static_cast<std::size_t>(action.stage_index)];
    switch (action.computation_type) {
      case FORWARD:
        return stage.forward;
      case BACKWARD_INPUT:
        return stage.input;
      case BACKWARD_WEIGHT:
        return stage.weight;
      default:
        return stage.input + stage.weight;
    }
  }

  void check_end() const {
    std::string waiting;
    for (std::size_t rank = 0; rank < next_.size(); ++rank) {
      const auto& actions = plan_.pipeline_order[rank];
      if (next_[rank] < actions.size())
        waiting += fmt::format("; rank {} waits at step {}, action {}", rank, next_[rank],
                               actions[next_[rank]]->str());
    }
    if (!waiting.empty()) throw_error<ArgumentError>("plan: deadlock{}", waiting);
  }

  const Plan& plan_;
  const std::vector<StageTimes>& times_;
  double message_time_;
  std::vector<int> rank_of_;
  bool messages_ = false;
  PerMicrobatch<double> inputs_, gradients_;  // when they are at this stage
  std::vector<std::size_t> next_, part_;      // [rank]
  std::vector<double> now_;
  std::vector<TimedAction> done_;
};

}  // namespace

Timeline simulate(const Plan& plan, const std::vector<StageTimes>& times, double message_time) {
  if (times.size() != 1 && times.size() != static_cast<std::size_t>(plan.num_stages))
    throw_error<ArgumentError>("simulate: {} times for {} stages; pass one, or one for each stage",
                               times.size(), plan.num_stages);
  check_plan(plan);
  return Clock(plan, times, message_time).run();
}

}  // namespace lockstep::pipelining
