// SPDX-License-Identifier: BSD-3-Clause
#include "ddp/step_trace.h"

#include <algorithm>
#include <array>
#include <span>
#include <system_error>

#include <fmt/ranges.h>

#include "base/atomic_file.h"
#include "base/throw_error.h"

namespace lockstep::ddp {
namespace {

constexpr std::array kParts{&StepTimes::forward, &StepTimes::backward, &StepTimes::communication_exposed,
                            &StepTimes::communication_hidden};

double milliseconds(StepClock::Clock::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

double microseconds(StepTrace::Clock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    if (static_cast<unsigned char>(c) >= ' ') result += c;
  }
  return result;
}

void write_file(const std::string& path, const std::vector<std::string>& parts) {
  const auto text =
      fmt::format("{{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n{}\n]}}\n", fmt::join(parts, ",\n"));
  try {
    AtomicFile file(path, {.sync = false});
    file.write(std::as_bytes(std::span(text)));
    file.commit();
  } catch (const std::system_error&) {
    throw Error("trace: cannot write " + path + "; check that the folder exists and has space");
  }
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
  for (const auto part : kParts) sum_.*part += last_.*part;
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

void StepTrace::add(Lane lane, std::string name, Clock::time_point begin, Clock::time_point end) {
  events_.push_back({lane, std::move(name), begin, end});
}

std::string StepTrace::to_json(const ProcessGroup& group, Clock::time_point zero) const {
  const int rank = group.rank();
  std::vector<std::string> lines{
      fmt::format(R"({{"ph": "M", "pid": {0}, "name": "process_name", "args": {{"name": "rank {0}"}}}})",
                  rank),
      fmt::format(
          R"({{"ph": "M", "pid": {}, "tid": 0, "name": "thread_name", "args": {{"name": "compute"}}}})",
          rank),
      fmt::format(
          R"({{"ph": "M", "pid": {}, "tid": 1, "name": "thread_name", "args": {{"name": "communication"}}}})",
          rank)};
  for (const auto& event : events_) {
    lines.push_back(
        fmt::format(R"({{"ph": "X", "pid": {}, "tid": {}, "name": "{}", "ts": {:.3f}, "dur": {:.3f}}})", rank,
                    event.lane == Lane::compute ? 0 : 1, escaped(event.name),
                    microseconds(event.begin - zero), microseconds(event.end - event.begin)));
  }
  return fmt::format("{}", fmt::join(lines, ",\n"));
}

void StepTrace::write(const ProcessGroup& group, std::source_location where) {
  // Hosts' clocks differ; a barrier ends at the same moment for all.
  auto zero = events_.empty() ? Clock::now() : events_.front().begin;
  group.barrier(where);
  const auto now = Clock::now();
  const auto ages = group.all_gather_object(fmt::format("{:.3f}", microseconds(now - zero)), where);
  double oldest = 0;
  for (const auto& age : ages) oldest = std::max(oldest, std::stod(age));
  zero = now - std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::micro>(oldest));
  const auto parts = group.gather_object(to_json(group, zero), 0, where);
  const auto path = std::exchange(path_, {});
  steps_left_ = -1;
  events_.clear();
  if (group.rank() == 0) write_file(path, parts);
}

}  // namespace lockstep::ddp
