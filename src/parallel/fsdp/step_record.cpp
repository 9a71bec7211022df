// SPDX-License-Identifier: BSD-3-Clause
#include "fsdp/step_record.h"

#include <utility>

namespace lockstep::fsdp {

using Track = tracing::StepTrace::Track;

void StepRecord::write_trace(const ProcessGroup& ranks, bool is_replica, std::source_location where) {
  if (is_replica) return trace_.discard();
  trace_.write(ranks, where);
}

void StepRecord::add_to(FsdpStats& stats) const {
  stats.steps = clock_.steps();
  stats.last = clock_.last();
  stats.mean = clock_.mean();
  stats.barrier_wait_last = barrier_wait_last_;
  stats.barrier_wait_total = barrier_wait_total_;
}

CallTimes::Clock::time_point StepRecord::launch() {
  reduces_ = true;
  return clock_.launch();
}

void StepRecord::add_gather(TrafficCount& traffic, const CallTimes& call) {
  traffic.add_gather(call);
  trace_call(Track::gathers, "gather " + traffic.name, call);
}

void StepRecord::add_reduction(TrafficCount& traffic, const CallTimes& call) {
  traffic.add_reduction(call);
  trace_call(Track::communication, "reduce " + traffic.name, call);
}

void StepRecord::add_barrier(const CallTimes& call) {
  barrier_wait_ += call.wait();
  barrier_wait_total_ += call.wait();
  trace_wait("waiting for all ranks", call);
}

bool StepRecord::end_pass() {
  if (!std::exchange(reduces_, false)) return false;
  clock_.end_step();
  barrier_wait_last_ = std::exchange(barrier_wait_, 0);
  if (!trace_.is_on()) return true;
  trace_.add(Track::compute, "forward", clock_.forward_begin(), clock_.forward_end());
  trace_.add(Track::compute, "backward", clock_.forward_end(), clock_.gradients_end());
  trace_.add(Track::compute, "waiting for reductions", clock_.gradients_end(),
             tracing::StepTrace::Clock::now());
  trace_.end_step();
  return true;
}

void StepRecord::trace_call(Track track, const std::string& name, const CallTimes& call) {
  if (!trace_.is_on()) return;
  trace_.add(track, name, call.launched, call.done);
  trace_wait("waiting for " + name, call);
}

void StepRecord::trace_wait(const std::string& name, const CallTimes& call) {
  if (trace_.is_on()) trace_.add(Track::compute, name, call.waiting, call.done);
}

}  // namespace lockstep::fsdp
