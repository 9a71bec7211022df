// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>

#include <lockstep/ddp/stats.h>

namespace lockstep::ddp {

// Takes the times of each step. A handful of clock readings a step, so it is always on.
class StepClock {
 public:
  using Clock = std::chrono::steady_clock;

  void begin_forward() { forward_ = Clock::now(); }
  void end_forward() {
    forward_end_ = Clock::now();
    first_launch_ = {};
  }
  Clock::time_point launch() {
    const auto now = Clock::now();
    if (first_launch_ == Clock::time_point{}) first_launch_ = now;
    return now;
  }
  void end_gradients() { gradients_end_ = Clock::now(); }
  void end_step();

  std::int64_t steps() const { return steps_; }
  const StepTimes& last() const { return last_; }
  Clock::time_point forward_begin() const { return forward_; }
  Clock::time_point forward_end() const { return forward_end_; }
  Clock::time_point gradients_end() const { return gradients_end_; }
  StepTimes mean() const;

 private:
  Clock::time_point forward_;
  Clock::time_point forward_end_;
  Clock::time_point first_launch_;
  Clock::time_point gradients_end_;
  std::int64_t steps_ = 0;
  StepTimes last_;
  StepTimes sum_;
};

}  // namespace lockstep::ddp
