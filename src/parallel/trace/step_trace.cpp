// SPDX-License-Identifier: BSD-3-Clause
#include "trace/step_trace.h"

#include <array>

#include "base/throw_error.h"

namespace lockstep::tracing {
namespace {

constexpr std::array kParts{&StepTimes::forward, &StepTimes::backward, &StepTimes::communication_exposed,
                            &StepTimes::communication_hidden};

double milliseconds(StepClock::Clock::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

}  // namespace

void StepClock::begin_forward() {
  progress_ = current_progress();
  if (progress_) claim_phases(*progress_);
  enter(Phase::forward);
  forward_ = Clock::now();
}

void StepClock::end_forward(bool backward_follows) {
  forward_end_ = Clock::now();
  first_launch_ = {};
  enter(backward_follows ? Phase::backward : Phase::other);
}

void StepClock::end_gradients() {
  gradients_end_ = Clock::now();
  enter(Phase::communication);
}

void StepClock::end_step() {
  const auto now = Clock::now();
  const bool launched = first_launch_ != Clock::time_point{};
  last_ = {.forward = milliseconds(forward_end_ - forward_),
           .backward = milliseconds(gradients_end_ - forward_end_),
           .communication_exposed = launched ? milliseconds(now - gradients_end_) : 0,
           .communication_hidden =
               launched && first_launch_ < gradients_end_ ? milliseconds(gradients_end_ - first_launch_) : 0};
  ++steps_;
  for (const auto part : kParts) sum_.*part += last_.*part;
  enter(Phase::optimizer);
  if (progress_) count_step(*progress_, before_ + static_cast<std::uint64_t>(steps_));
}

StepTimes StepClock::mean() const {
  auto mean = sum_;
  for (const auto part : kParts) mean.*part /= static_cast<double>(steps_ == 0 ? 1 : steps_);
  return mean;
}

void StepTrace::begin(std::string path, int steps) {
  if (path.empty()) throw ArgumentError("trace: the file's name is empty");
  if (steps < 1) throw_error<ArgumentError>("trace: {} steps; it must be at least 1", steps);
  if (!path_.empty()) throw ArgumentError("trace: " + path_ + " has not been written yet");
  path_ = std::move(path);
  steps_left_ = steps;
}

void StepTrace::add(Track track, std::string name, Clock::time_point begin, Clock::time_point end) {
  trace_.slices.push_back(
      {static_cast<std::size_t>(track), std::move(name), begin.time_since_epoch(), end.time_since_epoch()});
}

void StepTrace::write(const ProcessGroup& group, std::source_location where) {
  const auto path = path_;
  auto trace = std::exchange(trace_, {});
  discard();
  trace.tracks = tracks_;
  write_chrome_trace(
      path, trace, [] { return std::chrono::nanoseconds(Clock::now().time_since_epoch()); }, group, where);
}

}  // namespace lockstep::tracing
