// SPDX-License-Identifier: BSD-3-Clause
#include <utility>

#include <c10/core/GradMode.h>

#include "fsdp/parameter_group.h"
#include "fsdp/tree.h"

// Times and traces of the steps of a tree.
namespace lockstep::fsdp {

using Lane = tracing::StepTrace::Lane;

void Tree::begin_forward(const ParameterGroup& group) {
  if (trace_.is_complete()) write_trace(group);
  if (in_forward_ || !c10::GradMode::is_enabled()) return;
  check_module();
  in_forward_ = true;
  clock_.begin_forward();
}

void Tree::write_trace(const ParameterGroup& group) {
  const auto& first = outermost != nullptr ? *outermost : group;
  if (const auto& replicas = first.replicas(); replicas && replicas->rank() != 0) return trace_.discard();
  trace_.write(first.shard_group(), first.where());
}

CallTimes::Clock::time_point Tree::launch_reduction() {
  reduces_ = true;
  return clock_.launch();
}

void Tree::end_step() {
  clock_.end_step();
  for (auto* const group : groups) group->traffic().end_step();
  barrier_wait_last_ = std::exchange(barrier_wait_, 0);
  if (!trace_.is_on()) return;
  trace_.add(Lane::compute, "forward", clock_.forward_begin(), clock_.forward_end());
  trace_.add(Lane::compute, "backward", clock_.forward_end(), clock_.gradients_end());
  trace_.add(Lane::compute, "waiting for reductions", clock_.gradients_end(),
             tracing::StepTrace::Clock::now());
  trace_.end_step();
}

void Tree::trace_call(Lane lane, const std::string& name, const CallTimes& call) {
  if (!trace_.is_on()) return;
  trace_.add(lane, name, call.launched, call.done);
  trace_wait("waiting for " + name, call);
}

void Tree::trace_wait(const std::string& name, const CallTimes& call) {
  if (trace_.is_on()) trace_.add(Lane::compute, name, call.waiting, call.done);
}

void Tree::add_to(FSDPStats& stats) const {
  stats.steps = clock_.steps();
  stats.last = clock_.last();
  stats.mean = clock_.mean();
  stats.barrier_wait_last = barrier_wait_last_;
  stats.barrier_wait_total = barrier_wait_total_;
}

}  // namespace lockstep::fsdp
