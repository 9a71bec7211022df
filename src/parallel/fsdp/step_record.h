// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <source_location>
#include <string>

#include <lockstep/comm/process_group.h>
#include <lockstep/fsdp/fully_shard.h>

#include "trace/step_trace.h"

namespace lockstep::fsdp {

// A call that a group made, and waited for.
struct CallTimes {
  using Clock = std::chrono::steady_clock;

  Clock::time_point launched;
  Clock::time_point waiting;  // since then
  Clock::time_point done;
  std::int64_t bytes = 0;

  double wait() const { return std::chrono::duration<double, std::milli>(done - waiting).count(); }
};

// The sums of a group's calls.
struct TrafficCount {
  std::string name = {};  // of the group in traces: that of its first parameter
  FsdpTraffic step = {};  // since the last reduced backward pass
  FsdpTraffic last = {};  // in the step that ended with it
  FsdpTraffic total = {};

  void add_gather(const CallTimes& call) {
    for (auto* const sum : {&step, &total}) {
      ++sum->gathers;
      sum->gathered_bytes += call.bytes;
      sum->gather_wait += call.wait();
    }
  }
  void add_reduction(const CallTimes& call) {
    for (auto* const sum : {&step, &total}) {
      ++sum->reductions;
      sum->reduced_bytes += call.bytes;
      sum->reduction_wait += call.wait();
    }
  }
  void end_step() {
    last = step;
    step = {};
  }
};

// Times and traces of the steps of a tree.
class StepRecord {
 public:
  void begin_trace(const std::string& path, int steps) { trace_.begin(path, steps); }
  bool has_complete_trace() const { return trace_.is_complete(); }
  // Collective over `ranks`; replicas of the first ones leave it to them.
  void write_trace(const ProcessGroup& ranks, bool is_replica, std::source_location where);
  void add_to(FsdpStats& stats) const;

  void begin_forward() { clock_.begin_forward(); }
  void end_forward(bool backward_follows) { clock_.end_forward(backward_follows); }
  void end_gradients() { clock_.end_gradients(); }
  // A reduction begins. Returns the time.
  CallTimes::Clock::time_point launch();
  void add_gather(TrafficCount& traffic, const CallTimes& call);
  void add_reduction(TrafficCount& traffic, const CallTimes& call);
  void add_barrier(const CallTimes& call);
  // Returns whether this ends a step: the pass has launched reductions.
  bool end_pass();

 private:
  void trace_call(tracing::StepTrace::Track track, const std::string& name, const CallTimes& call);
  void trace_wait(const std::string& name, const CallTimes& call);

  tracing::StepClock clock_;
  tracing::StepTrace trace_{{"compute", "reductions", "gathers"}};
  bool reduces_ = false;     // in this pass
  double barrier_wait_ = 0;  // in this step, in milliseconds
  double barrier_wait_last_ = 0;
  double barrier_wait_total_ = 0;
};

}  // namespace lockstep::fsdp
