// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include <lockstep/comm/process_group.h>

namespace lockstep::ddp {

// What happened in some steps of one rank, and how all ranks' records become one Chrome trace.
class StepTrace {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Lane { compute, communication };

  void begin(std::string path, int steps);
  bool is_on() const { return steps_left_ > 0; }
  // Steps have been recorded and not been written yet.
  bool is_due() const { return steps_left_ == 0 && !path_.empty(); }

  void add(Lane lane, std::string name, Clock::time_point begin, Clock::time_point end);
  void end_step() { --steps_left_; }
  // A collective call: rank 0 writes the file, under its name only once it is complete.
  void write(const ProcessGroup& group, std::source_location where);

 private:
  struct Event {
    Lane lane;
    std::string name;
    Clock::time_point begin;
    Clock::time_point end;
  };
  std::string to_json(const ProcessGroup& group, Clock::time_point zero) const;

  std::string path_;
  int steps_left_ = -1;
  std::vector<Event> events_;
};

}  // namespace lockstep::ddp
