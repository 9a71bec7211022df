// SPDX-License-Identifier: BSD-3-Clause
#include "pipelining/plans.h"

#include <algorithm>
#include <array>
#include <deque>
#include <set>

#include "base/throw_error.h"

namespace lockstep::pipelining {
namespace {

using enum ComputationType;

enum class Need { one_stage, any, two_stages };

struct NamedPlan {
  std::string_view name;
  Need stages;
  Actions (*rank_actions)(const PlanSize&, int);
};

constexpr std::array kPlans{
    NamedPlan{"GPipe", Need::one_stage, gpipe},
    NamedPlan{"1F1B", Need::one_stage, one_f_one_b},
    NamedPlan{"Interleaved1F1B", Need::any, interleaved_1f1b},
    NamedPlan{"LoopedBFS", Need::any, looped_bfs},
    NamedPlan{"InterleavedZeroBubble", Need::any, interleaved_zero_bubble},
    NamedPlan{"ZBVZeroBubble", Need::two_stages, zbv_zero_bubble},
    NamedPlan{"DualPipeV", Need::two_stages, dual_pipe_v},
};

std::string lowered(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

const NamedPlan& find_plan(std::string_view schedule_name) {
  auto name = lowered(schedule_name);
  if (name.starts_with("schedule")) name = name.substr(8);
  std::string names;
  for (const auto& plan : kPlans) {
    if (lowered(plan.name) == name) return plan;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", plan.name);
  }
  throw_error<ArgumentError>("no schedule \"{}\"; the names are {}", schedule_name, names);
}

void check_size(const NamedPlan& plan, const PlanSize& size) {
  if (size.ranks < 1 || size.local_stages < 1 || size.microbatches < 1) {
    throw_error<ArgumentError>("{}: {} ranks, {} stages on each rank, {} micro-batches; all are at least 1",
                               plan.name, size.ranks, size.local_stages, size.microbatches);
  }
  const int needed = plan.stages == Need::one_stage ? 1 : 2;
  if (plan.stages != Need::any && size.local_stages != needed) {
    throw_error<ArgumentError>("{}: {} stages on each rank; it has exactly {}", plan.name, size.local_stages,
                               needed);
  }
  const bool fills = plan.rank_actions == one_f_one_b || plan.rank_actions == dual_pipe_v;
  if (fills && size.microbatches < size.num_stages()) {
    throw_error<ArgumentError>("{}: {} micro-batches and {} stages; use at least as many micro-batches",
                               plan.name, size.microbatches, size.num_stages());
  }
  const int rounds = std::max(1, size.microbatches / size.ranks);
  const bool in_rounds =
      plan.rank_actions == interleaved_1f1b || plan.rank_actions == interleaved_zero_bubble;
  if (in_rounds && size.microbatches % rounds != 0) {
    throw_error<ArgumentError>(
        "{}: {} micro-batches on {} ranks are not a multiple of the {} rounds (micro-batches / ranks)",
        plan.name, size.microbatches, size.ranks, rounds);
  }
}

}  // namespace

Plan make_plan(std::string_view schedule_name, int pp_group_size, int n_local_stages, int n_microbatches) {
  const auto& named = find_plan(schedule_name);
  const PlanSize size{pp_group_size, n_local_stages, n_microbatches};
  check_size(named, size);
  Plan plan;
  plan.num_stages = size.num_stages();
  plan.n_microbatches = n_microbatches;
  for (int rank = 0; rank < pp_group_size; ++rank)
    plan.pipeline_order.push_back(named.rank_actions(size, rank));
  if (named.rank_actions == interleaved_zero_bubble) add_bubbles(plan);
  return named.stages == Need::one_stage ? add_reduce_grad(plan) : plan;
}

Actions gpipe(const PlanSize& size, int rank) {
  Actions actions;
  add_idle(actions, rank);
  for (int i = 0; i < size.microbatches; ++i) add(actions, rank, FORWARD, i);
  add_idle(actions, 3 * (size.ranks - 1 - rank));
  for (int i = 0; i < size.microbatches; ++i) add(actions, rank, FULL_BACKWARD, i);
  return actions;
}

Actions one_f_one_b(const PlanSize& size, int rank) {
  const int warmup = size.ranks - 1 - rank;
  Actions actions;
  add_idle(actions, rank);
  for (int i = 0; i < warmup; ++i) add(actions, rank, FORWARD, i);
  add_idle(actions, 2 * warmup);
  for (int i = warmup; i < size.microbatches; ++i) {
    add(actions, rank, FORWARD, i);
    add(actions, rank, FULL_BACKWARD, i - warmup);
  }
  for (int i = size.microbatches - warmup; i < size.microbatches; ++i) {
    add_idle(actions, 1);
    add(actions, rank, FULL_BACKWARD, i);
  }
  return actions;
}

Actions looped_bfs(const PlanSize& size, int rank) {
  Actions actions;
  add_idle(actions, rank);
  for (int stage = rank; stage < size.num_stages(); stage += size.ranks)
    for (int i = 0; i < size.microbatches; ++i) add(actions, stage, FORWARD, i);
  add_idle(actions, 2 * (size.ranks - 1 - rank));
  for (int stage = size.num_stages() - size.ranks + rank; stage >= 0; stage -= size.ranks)
    for (int i = size.microbatches - 1; i >= 0; --i) add(actions, stage, FULL_BACKWARD, i);
  return actions;
}

namespace {

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

namespace {

// Two stages on each rank, the first on the way down and the second on the way up.

// Adds the next micro-batch's action of stage 0 or 1 of a rank.
class TwoStages {
 public:
  TwoStages(const PlanSize& size, int rank) : stages_{rank, size.num_stages() - 1 - rank} {}

  void forward(int which) { add(actions, stage(which), FORWARD, forwards[at(which)]++); }
  void input(int which) { add(actions, stage(which), BACKWARD_INPUT, inputs[at(which)]++); }
  void weight(int which) { add(actions, stage(which), BACKWARD_WEIGHT, weights[at(which)]++); }
  void both(int which) {
    input(which);
    weight(which);
  }
  void full(int which) {
    add(actions, stage(which), FULL_BACKWARD, inputs[at(which)]++);
    ++weights[at(which)];
  }
  void overlap(int forward_of, int backward_of) {
    Actions parts;
    std::swap(parts, actions);
    forward(forward_of);
    full(backward_of);
    std::swap(parts, actions);
    actions.push_back(Action{.computation_type = OVERLAP_F_B, .sub_actions = {*parts[0], *parts[1]}});
  }

  Actions actions;
  std::array<int, 2> forwards{}, inputs{}, weights{};

 private:
  static std::size_t at(int which) { return static_cast<std::size_t>(which); }
  int stage(int which) const { return stages_[at(which)]; }

  std::array<int, 2> stages_;
};

// The weight parts that are still to come, in the order of their input parts.
class WeightQueue {
 public:
  explicit WeightQueue(TwoStages& rows) : rows_(rows) {}
  void input(int which) {
    rows_.input(which);
    waiting_.push_back(which);
  }
  void weight() {
    if (waiting_.empty()) return;
    rows_.weight(waiting_.front());
    waiting_.pop_front();
  }
  void backward(int which, bool split) { split ? input(which) : rows_.full(which); }

 private:
  TwoStages& rows_;
  std::deque<int> waiting_;
};

void repeat(int count, const auto& body) {
  for (int i = 0; i < count; ++i) body(i);
}

}  // namespace

Actions zbv_zero_bubble(const PlanSize& size, int rank) {
  TwoStages rows(size, rank);
  const int planned = std::max(2 * size.ranks - 1, size.microbatches);
  repeat(2 * (size.ranks - rank) - 1, [&](int) { rows.forward(0); });
  repeat(rank, [&](int) {
    rows.forward(1);
    rows.forward(0);
  });
  repeat(size.ranks - rank, [&](int) {
    rows.forward(1);
    rows.both(1);
  });
  while (rows.forwards[1] < rows.forwards[0] || rows.forwards[0] < planned) {
    if (rows.forwards[0] < planned) rows.forward(0);
    rows.both(0);
    rows.forward(1);
    rows.both(1);
  }
  repeat(rank, [&](int) {
    rows.input(0);
    rows.input(1);
  });
  repeat(size.ranks - rank, [&](int) {
    rows.input(0);
    rows.weight(0);
  });
  while (rows.weights[1] < rows.inputs[1]) rows.weight(1);
  while (rows.weights[0] < rows.inputs[0]) rows.weight(0);
  // The plan is that of a full pipeline; with fewer micro-batches the others become idle steps.
  Actions actions;
  add_idle(actions, rank);
  for (const auto& action : rows.actions) {
    actions.push_back(*action->microbatch_index < size.microbatches ? action : std::nullopt);
  }
  return actions;
}

Actions dual_pipe_v(const PlanSize& size, int rank) {
  TwoStages rows(size, rank);
  WeightQueue queue(rows);
  const int after = size.ranks - rank - 1;
  const bool odd = rank % 2 == 1;
  repeat(2 * after, [&](int) { rows.forward(0); });
  repeat(rank + 1, [&](int) {
    rows.forward(0);
    rows.forward(1);
  });
  repeat(after, [&](int) {
    queue.input(1);
    queue.weight();
    rows.forward(1);
  });
  repeat(size.microbatches - 2 * size.ranks + rank + 1, [&](int i) {
    if (i == 0 && after == 0) {
      rows.forward(0);
      rows.full(1);
    } else {
      rows.overlap(0, 1);
    }
    rows.overlap(1, 0);
  });
  repeat(after, [&](int) {
    rows.full(1);
    rows.overlap(1, 0);
  });
  // The second half of the last backwards is split, and the weight parts fill the end.
  bool split = false;
  repeat(rank + 1, [&](int i) {
    const bool half = i == (rank + 1) / 2;
    split = split || (half && odd);
    queue.backward(1, split);
    split = split || half;
    queue.backward(0, split);
  });
  repeat(after, [&](int) {
    queue.weight();
    queue.backward(0, split);
  });
  repeat(rank + 1, [&](int) { queue.weight(); });
  return rows.actions;
}

}  // namespace lockstep::pipelining
