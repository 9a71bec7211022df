// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include <lockstep/fsdp/fully_shard.h>

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
  FSDPTraffic step = {};  // since the last reduced backward pass
  FSDPTraffic last = {};  // in the step that ended with it
  FSDPTraffic total = {};

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

}  // namespace lockstep::fsdp
