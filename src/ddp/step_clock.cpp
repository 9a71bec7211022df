// SPDX-License-Identifier: BSD-3-Clause
#include "ddp/step_clock.h"

namespace lockstep::ddp {
namespace {

double milliseconds(StepClock::Clock::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

}  // namespace

void StepClock::end_step() {
  const auto now = Clock::now();
  const bool launched = first_launch_ != Clock::time_point{};
  last_ = {.forward = milliseconds(forward_end_ - forward_),
           .backward = milliseconds(gradients_end_ - forward_end_),
           .communication_exposed = launched ? milliseconds(now - gradients_end_) : 0,
           .communication_hidden =
               launched && first_launch_ < gradients_end_ ? milliseconds(gradients_end_ - first_launch_) : 0};
  ++steps_;
  sum_.forward += last_.forward;
  sum_.backward += last_.backward;
  sum_.communication_exposed += last_.communication_exposed;
  sum_.communication_hidden += last_.communication_hidden;
}

StepTimes StepClock::mean() const {
  const auto steps = static_cast<double>(steps_ == 0 ? 1 : steps_);
  return {.forward = sum_.forward / steps,
          .backward = sum_.backward / steps,
          .communication_exposed = sum_.communication_exposed / steps,
          .communication_hidden = sum_.communication_hidden / steps};
}

}  // namespace lockstep::ddp
