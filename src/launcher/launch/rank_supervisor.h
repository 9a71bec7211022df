// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <optional>
#include <poll.h>
#include <set>
#include <string>
#include <sys/signalfd.h>
#include <sys/types.h>
#include <vector>

#include "base/deadline.h"
#include "base/unique_fd.h"
#include "launch/failure_report.h"

namespace lockstep::launch {

class HostControl;
class LogMultiplexer;

// The shorter of two limits; -1: no limit.
std::chrono::milliseconds shorter(std::chrono::milliseconds a, std::chrono::milliseconds b);

// Note [Supervision of ranks]
//
// RankSupervisor is the state machine that `lockstep run` and spawn() share. It reaps processes, decides
// which rank failed first, and stops all ranks and everything that they started. Derived classes start the
// ranks.
//
//   idle        no rank has been started, or no process is left
//   running     all ranks run, or have succeeded; overcome() may start single ranks again, or do without them
//   confirming  a rank failed, but says that it lost a peer: waits for the failure of that peer
//   stopping    the ranks got a stop signal and have the grace period to end
//   killing     every descendant gets SIGKILL, repeatedly, until none is left
//
//   idle -> running -> [confirming ->] [stopping -> [killing ->]] idle
//
// Threads: one, a poll loop of the derived class. Signals are blocked and read from a signalfd, so no code
// runs in a signal handler.
//
// Invariants:
// - The process is a subreaper (ChildSubreaper): every orphan becomes its child. So it has no children
//   exactly when no descendant is left, and only then the phase becomes idle.
// - Failures count as the first one only in running and confirming. Later ones are consequences of the stop.
// - The failure of a rank that is replaced, or that the others do without, does not count: the phase stays running, and
//   no other rank is signalled.
//   So it is with a rank that was interrupted.
// - When the parent dies, the loop ends and the caller kills all descendants.
class RankSupervisor {
 public:
  RankSupervisor(const RankSupervisor&) = delete;
  RankSupervisor& operator=(const RankSupervisor&) = delete;

 protected:
  enum class Phase { idle, running, confirming, stopping, killing };

  struct Limits {
    std::chrono::milliseconds grace_period;  // from the stop signal to SIGKILL
    // After a rank that lost its peer: until that peer must have failed.
    std::chrono::milliseconds confirm;
  };

  // REQUIRES a ChildSubreaper, and that SIGCHLD and `signals` are blocked. `parent` (a pidfd): readable
  // when the process above has died. `context` begins the messages of errors.
  RankSupervisor(const Limits& limits, const std::set<int>& signals, int parent, std::string context = "");
  virtual ~RankSupervisor() = default;

  // A rank or nullopt: which one the ended child was. It does not count as alive from then on.
  virtual std::optional<RankExit> take_exit(const RankExit& child) = 0;
  virtual bool has_ranks() const = 0;
  // A rank has failed in the phase running: starts it alone again, or has the others go on without it, if the run allows
  // that. False: the run, or this attempt of it, has failed; `exit` may then say more.
  virtual bool overcome(RankExit& /*exit*/) { return false; }
  virtual FailureReport report(const RankExit& exit) = 0;
  // To all living ranks; continues stopped ones.
  virtual void signal_ranks(int signal) = 0;
  // For processes that outlive the ranks, from their stop signal to SIGKILL.
  virtual std::chrono::milliseconds leftover_limit() const = 0;
  // A stop signal, or a warning (see is_warning()).
  virtual void on_signal(int /*signal*/) {}
  virtual void on_run_timeout() {}
  // failures().first() is final.
  virtual void on_first_failure() {}
  virtual void on_grace_period_over() {}
  // No process is left; the phase is idle.
  virtual void on_all_gone() {}

  // Begins the phase running. REQUIRES idle.
  void begin_run(std::optional<std::chrono::milliseconds> timeout = std::nullopt);
  // Waits for `events`, a signal or the parent's death, at most `limit` (-1: no limit) and no longer than to
  // the next deadline. False when the parent has died.
  bool wait(std::vector<pollfd>& events, std::chrono::milliseconds limit = std::chrono::milliseconds(-1));
  void handle_signals();
  std::optional<signalfd_siginfo> next_signal() const;
  // Waits for a slow reader of `logs` without a deadline, as any program does. A stop signal ends the wait;
  // `control` may have one, too.
  void flush(LogMultiplexer& logs, HostControl* control = nullptr);
  // Acts when the deadline of the phase has passed.
  void advance();
  void begin_stop(int signal);
  void begin_kill();

  int signal_fd() const { return signals_.get(); }
  Phase phase() const { return phase_; }
  bool is_stopping() const { return phase_ == Phase::stopping || phase_ == Phase::killing; }
  bool parent_died() const { return parent_died_; }
  FailureTracker& failures() { return failures_; }
  const FailureTracker& failures() const { return failures_; }

 private:
  void reap(pid_t first);
  void on_rank_exit(RankExit exit);
  void confirm_first_failure();
  void stop_leftovers();
  void enter(Phase phase, std::chrono::milliseconds limit);
  std::chrono::milliseconds time_left() const;

  const Limits limits_;
  const int parent_;
  const std::string context_;
  const UniqueFd signals_;
  Phase phase_ = Phase::idle;
  std::optional<Deadline> deadline_;  // of the phase
  FailureTracker failures_;
  int sent_signal_ = 0;  // the last one to ranks that are to stop
  bool leftovers_stopped_ = false;
  bool parent_died_ = false;
};

}  // namespace lockstep::launch
