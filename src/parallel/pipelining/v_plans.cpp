// SPDX-License-Identifier: BSD-3-Clause
// Two stages on each rank, the first on the way down and the second on the way up.
#include <algorithm>
#include <array>
#include <deque>

#include "pipelining/plans.h"

namespace lockstep::pipelining {
namespace {

using enum ComputationType;

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
