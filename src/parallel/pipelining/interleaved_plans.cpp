// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <set>
#include <tuple>

#include "pipelining/plans.h"

namespace lockstep::pipelining {
namespace {

using enum ComputationType;

// Interleaved schedules handle micro-batches in rounds: each local stage in turn runs those of one round.
class Interleaving {
 public:
  // `hop`: the forwards that a rank runs ahead of the next one before the first backward.
  Interleaving(const PlanSize& size, int rank, int hop)
      : size_(size),
        rank_(rank),
        per_round_(size.microbatches / std::max(1, size.microbatches / size.ranks)),
        forwards_(size.local_stages),
        inputs_(size.local_stages),
        weights_(size.local_stages) {
    const int ahead = (size.local_stages - 1) * per_round_ + hop * (size.ranks - 1 - rank);
    warmup_ = std::min(ahead, total());
    add_idle(actions_, rank);
  }

  int total() const { return size_.local_stages * size_.microbatches; }
  int warmup() const { return warmup_; }
  Actions& actions() { return actions_; }

  // The `step`-th forward, backward or weight part of this rank.
  void forward(int step) { add_next(FORWARD, turn(step), forwards_); }
  void backward(int step, ComputationType type) { add_next(type, last_turn(step), inputs_); }
  void weight(int step) { add_next(BACKWARD_WEIGHT, last_turn(step), weights_); }

 private:
  int turn(int step) const { return step / per_round_ % size_.local_stages; }
  int last_turn(int step) const { return size_.local_stages - 1 - turn(step); }

  void add_next(ComputationType type, int local_stage, std::vector<int>& done) {
    const auto index = static_cast<std::size_t>(local_stage);
    add(actions_, local_stage * size_.ranks + rank_, type, done[index]++);
  }

  PlanSize size_;
  int rank_;
  int per_round_;
  int warmup_ = 0;
  std::vector<int> forwards_, inputs_, weights_;  // the next micro-batch, [local stage]
  Actions actions_;
};

}  // namespace

Actions interleaved_1f1b(const PlanSize& size, int rank) {
  Interleaving rows(size, rank, 2);
  const int total = rows.total(), warmup = rows.warmup();
  for (int step = 0; step < warmup; ++step) rows.forward(step);
  if (warmup > 0) {
    add_idle(rows.actions(), size.local_stages * size.ranks + 2 * (size.ranks - 1 - rank) - (warmup + rank));
  }
  for (int step = 0; step < total; ++step) {
    if (warmup + step < total) {
      rows.forward(warmup + step);
    } else {
      add_idle(rows.actions(), 1);
    }
    rows.backward(step, FULL_BACKWARD);
  }
  return std::move(rows.actions());
}

Actions interleaved_zero_bubble(const PlanSize& size, int rank) {
  Interleaving rows(size, rank, 1);
  const int total = rows.total(), warmup = rows.warmup();
  for (int step = 0; step < warmup; ++step) rows.forward(step);
  if (warmup > 0) add_idle(rows.actions(), size.ranks - rank - 1);
  for (int step = 0; step < total; ++step) {
    if (warmup + step < total) rows.forward(warmup + step);
    rows.backward(step, BACKWARD_INPUT);
    // Rank r keeps r weight parts for the time in which it waits at the end.
    if (step >= rank) rows.weight(step - rank);
  }
  for (int step = std::max(0, total - rank); step < total; ++step) rows.weight(step);
  return std::move(rows.actions());
}

void add_bubbles(Plan& plan) {
  const auto ranks = plan.pipeline_order.size();
  std::vector<Actions> delayed(ranks);
  std::vector<std::size_t> next(ranks);
  std::set<std::pair<int, int>> forwarded;  // stage, micro-batch
  for (bool more = true; more;) {
    more = false;
    std::vector<std::pair<int, int>> now;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const auto& actions = plan.pipeline_order[rank];
      if (next[rank] >= actions.size()) continue;
      more = true;
      const auto& action = actions[next[rank]];
      const bool forward = action && action->computation_type == FORWARD;
      if (forward && action->stage_index > 0 &&
          !forwarded.contains({action->stage_index - 1, *action->microbatch_index})) {
        delayed[rank].emplace_back();
        continue;
      }
      if (forward) now.emplace_back(action->stage_index, *action->microbatch_index);
      delayed[rank].push_back(action);
      ++next[rank];
    }
    forwarded.insert(now.begin(), now.end());
  }
  plan.pipeline_order = std::move(delayed);
}

}  // namespace lockstep::pipelining
