// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/comm/process_group.h>
#include <lockstep/nn/wrapped_module.h>

#include "base/rank_progress.h"
#include "trace/chrome_trace.h"

namespace lockstep::tracing {

// Measures the parts of each step, and publishes which one this is. Always on: it reads the clock a few times
// a step.
class StepClock {
 public:
  using Clock = std::chrono::steady_clock;

  // By the thread that trains.
  void begin_forward();
  // `backward_follows`: false in evaluation.
  void end_forward(bool backward_follows);
  Clock::time_point launch() {
    const auto now = Clock::now();
    if (first_launch_ == Clock::time_point{}) first_launch_ = now;
    return now;
  }
  void end_gradients();
  void end_step();

  std::int64_t steps() const { return steps_; }
  const StepTimes& last() const { return last_; }
  Clock::time_point forward_begin() const { return forward_; }
  Clock::time_point forward_end() const { return forward_end_; }
  Clock::time_point gradients_end() const { return gradients_end_; }
  StepTimes mean() const;

 private:
  void enter(Phase phase) {
    if (progress_) enter_phase(*progress_, phase);
  }

  std::shared_ptr<RankProgress> progress_;  // of the rank that began the forward
  std::uint64_t before_ = counted_steps();
  Clock::time_point forward_;
  Clock::time_point forward_end_;
  Clock::time_point first_launch_;
  Clock::time_point gradients_end_;
  std::int64_t steps_ = 0;
  StepTimes last_;
  StepTimes sum_;
};

// Records some steps of one rank, and writes all ranks' records as one Chrome trace.
class StepTrace {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Track : std::size_t { compute, communication, gathers };

  // `tracks`: the names of the first tracks.
  explicit StepTrace(std::vector<std::string> tracks = {"compute", "communication"})
      : tracks_(std::move(tracks)) {}

  void begin(std::string path, int steps);
  bool is_on() const { return steps_left_ > 0; }
  // Whether all steps have been recorded, and not been written yet.
  bool is_complete() const { return steps_left_ == 0 && !path_.empty(); }

  void add(Track track, std::string name, Clock::time_point begin, Clock::time_point end);
  void end_step() { --steps_left_; }
  // Forgets a complete trace, which another rank writes.
  void discard() {
    path_.clear();
    steps_left_ = -1;
    trace_ = {};
  }
  // See write_chrome_trace().
  void write(const ProcessGroup& group, std::source_location where);

 private:
  std::vector<std::string> tracks_;
  std::string path_;
  int steps_left_ = -1;
  RankTrace trace_;
};

}  // namespace lockstep::tracing
