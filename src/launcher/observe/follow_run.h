// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "observe/figures.h"
#include "observe/find_runs.h"

namespace lockstep::observe {

// A run that is read again and again. Its memory stays mapped, and /proc is searched again only for new groups and ranks:
// when a process has ended, and after 1, 4, 16 and each 64 s without a change.
class FollowedRun {
 public:
  // As find_run().
  explicit FollowedRun(const std::string& name);

  // The run now, without Rank::activity. nullopt: all its processes have ended and its launcher, if it has one, too.
  std::optional<Run> read();
  // The run as it was found last.
  const ObservedRun& observed() const { return observed_; }
  // [pid as Rank::pid] of the processes that run. PSS is read at most every 2 s, and takes at most a two-thousandth of
  // a processor.
  std::map<std::int64_t, MemoryUse> memory();

 private:
  using Clock = std::chrono::steady_clock;

  // A process, or a pid that belongs to another one by now.
  struct Watched {
    int pid = 0;
    UniqueFd fd{};  // none: the kernel gave none

    explicit Watched(int process);
    bool has_ended() const;
  };

  void follow(ObservedRun run);
  // Whether a process has ended since the last time. Its ranks are marked.
  bool mark_ended();
  void search();
  std::optional<ObservedRun> find_again() const;
  void read_proportional(Clock::time_point now);

  ObservedRun observed_{};
  std::vector<Watched> processes_{};  // that have not ended
  std::optional<Watched> launcher_{};
  Clock::time_point searched_{};
  Clock::duration period_{};
  std::map<int, std::int64_t> proportional_{};  // by the pid as this process sees it
  Clock::time_point proportional_due_{};
};

}  // namespace lockstep::observe
