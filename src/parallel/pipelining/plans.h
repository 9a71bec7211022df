// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <lockstep/pipelining/schedule.h>

namespace lockstep::pipelining {

// The arguments of make_plan(), checked to be positive.
struct PlanSize {
  int ranks;
  int local_stages;
  int microbatches;
  int num_stages() const { return ranks * local_stages; }
};

inline void add(Actions& actions, int stage, ComputationType type, int microbatch) {
  actions.push_back(Action{.stage_index = stage, .computation_type = type, .microbatch_index = microbatch});
}
inline void add_idle(Actions& actions, int count) {
  for (int i = 0; i < count; ++i) actions.emplace_back();
}

// The actions of `rank`.
Actions gpipe(const PlanSize& size, int rank);
Actions one_f_one_b(const PlanSize& size, int rank);
Actions looped_bfs(const PlanSize& size, int rank);
Actions interleaved_1f1b(const PlanSize& size, int rank);
Actions interleaved_zero_bubble(const PlanSize& size, int rank);
Actions zbv_zero_bubble(const PlanSize& size, int rank);
Actions dual_pipe_v(const PlanSize& size, int rank);

// Delays forwards of interleaved_zero_bubble() until the stage before has run.
void add_bubbles(Plan& plan);

}  // namespace lockstep::pipelining
