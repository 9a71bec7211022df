// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <map>
#include <optional>
#include <vector>

#include <lockstep/base/deadline.h>
#include <lockstep/base/unique_fd.h>
#include <lockstep/launch/failure_report.h>

#include "rendezvous/spawn_rank.h"

namespace lockstep::rendezvous {

// Starts the ranks of spawn() and sees them to their end, in one thread. REQUIRES a ChildSubreaper and that
// all signals are blocked.
class SpawnSupervisor {
 public:
  // `line`: to the caller; `outer` (a pidfd): when it becomes readable everything is killed.
  SpawnSupervisor(const SpawnPlan& plan, int line, int outer);

  // Throws LaunchError when the system refuses a process. `foreign`: descriptors that are not for ranks.
  void start_ranks(std::vector<int> foreign);
  int signal_fd() const { return signals_.get(); }

  // Returns when no process is left below this one; the board has the verdict.
  void run();

 private:
  enum class Phase { running, doubting, stopping, killing };

  void step();
  int patience() const;
  void read_line();
  void read_signals();
  void reap(pid_t first);
  void on_rank_exit(const launch::RankExit& exit);
  bool is_consequence(const launch::RankExit& exit) const;
  void advance_phase();
  void on_timeout();
  void begin_stop();
  void enter(Phase phase, std::chrono::milliseconds limit);
  void judge();

  const SpawnPlan& plan_;
  const int line_;
  const int outer_;
  UniqueFd signals_;
  std::map<pid_t, int> alive_;  // pid -> rank
  Phase phase_ = Phase::running;
  std::optional<Deadline> deadline_;  // of the phase
  bool processes_left_ = true;
  bool outer_gone_ = false;
  bool stop_asked_ = false;
  std::optional<launch::RankExit> cause_;
};

}  // namespace lockstep::rendezvous
