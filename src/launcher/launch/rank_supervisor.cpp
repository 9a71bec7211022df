// SPDX-License-Identifier: BSD-3-Clause
#include "launch/rank_supervisor.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/throw_error.h"
#include "launch/guard.h"
#include "launch/host_control.h"
#include "launch/log_multiplexer.h"
#include "launch/options.h"
#include "launch/process_tree.h"

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;

// Processes that are being killed may have started others meanwhile.
constexpr milliseconds kKillInterval{5};
constexpr milliseconds kNoLimit{-1};

bool ends_wait(int signal) { return signal != SIGCHLD && !is_user_signal(signal); }

UniqueFd open_signalfd(const sigset_t& signals, const std::string& context) {
  UniqueFd fd(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) throw LaunchError(context + "cannot watch signals: signalfd: " + errno_text(errno));
  return fd;
}

}  // namespace

milliseconds shorter(milliseconds a, milliseconds b) {
  if (a < milliseconds(0) || b < milliseconds(0)) return std::max(a, b);
  return std::min(a, b);
}

RankSupervisor::RankSupervisor(const Limits& limits, const std::set<int>& signals, int parent,
                               std::string context)
    : limits_(limits),
      parent_(parent),
      context_(std::move(context)),
      signals_(open_signalfd(watched_signals(signals), context_)) {}

void RankSupervisor::begin_run(std::optional<milliseconds> timeout) {
  failures_ = {};
  sent_signal_ = 0;
  leftovers_stopped_ = false;
  phase_ = Phase::running;
  deadline_.reset();
  if (timeout) deadline_.emplace(*timeout);
}

bool RankSupervisor::wait(std::vector<pollfd>& events, milliseconds limit) {
  events.push_back({.fd = signals_.get(), .events = POLLIN, .revents = 0});
  events.push_back({.fd = parent_, .events = POLLIN, .revents = 0});
  const auto longest = std::min<milliseconds>(shorter(limit, time_left()), std::chrono::hours(1));
  if (::poll(events.data(), events.size(), static_cast<int>(longest.count())) < 0 && errno != EINTR) {
    throw LaunchError(context_ + "cannot wait for the ranks: poll: " + errno_text(errno));
  }
  parent_died_ = events.back().revents != 0;
  return !parent_died_;
}

milliseconds RankSupervisor::time_left() const {
  if (phase_ == Phase::killing) return kKillInterval;
  if (phase_ == Phase::idle || !deadline_) return kNoLimit;
  return deadline_->remaining() + milliseconds(1);
}

std::optional<signalfd_siginfo> RankSupervisor::next_signal() const {
  signalfd_siginfo info{};
  return ::read(signals_.get(), &info, sizeof(info)) == sizeof(info) ? std::optional(info) : std::nullopt;
}

void RankSupervisor::handle_signals() {
  while (const auto info = next_signal()) {
    if (info->ssi_signo == SIGCHLD) {
      reap(static_cast<pid_t>(info->ssi_pid));
    } else {
      on_signal(static_cast<int>(info->ssi_signo));
    }
  }
}

void RankSupervisor::reap(pid_t first) {
  const auto ended = reap_ended_children(first);
  std::vector<RankExit> exits;
  for (const auto& child : ended.exits) {
    if (const auto exit = take_exit(child)) exits.push_back(*exit);
  }
  for (const auto& exit : exits) on_rank_exit(exit);
  if (phase_ == Phase::idle || has_ranks()) return;
  if (ended.any_left) return stop_leftovers();
  if (phase_ == Phase::confirming) confirm_first_failure();
  phase_ = Phase::idle;
  on_all_gone();
}

void RankSupervisor::on_rank_exit(RankExit exit) {
  if (exit.interrupted) return failures_.add_interrupted(exit.rank);
  if (!exit.failed()) return failures_.add_finished(exit.rank);
  if (exit.signal != 0 && exit.signal == sent_signal_) {
    failures_.add_stopped(exit.rank, exit.signal == SIGKILL);
  } else if (is_stopping()) {
    failures_.add_later(exit);
  } else if (phase_ != Phase::running || !overcome(exit)) {
    failures_.add(report(exit));
    const bool wait = failures_.may_be_consequence() && has_ranks();
    if (phase_ == Phase::running || !wait) enter(Phase::confirming, wait ? limits_.confirm : milliseconds(0));
  }
}

void RankSupervisor::confirm_first_failure() {
  begin_stop(SIGTERM);
  on_first_failure();
}

void RankSupervisor::flush(LogMultiplexer& logs, HostControl* control) {
  while (logs.pending()) {
    std::vector<pollfd> events;
    logs.watch(events);
    if (control != nullptr) control->watch(events);
    if (!wait(events, control != nullptr ? control->poll_timeout() : std::chrono::milliseconds(-1))) return;
    for (const auto& event : events) logs.handle(event);
    if (const auto signal = next_signal(); signal && ends_wait(static_cast<int>(signal->ssi_signo))) return;
    if (control != nullptr && control->next_signal()) return;
  }
}

void RankSupervisor::advance() {
  if (phase_ == Phase::idle) return;
  if (deadline_ && deadline_->expired()) {
    if (phase_ == Phase::running) {
      on_run_timeout();
    } else if (phase_ == Phase::confirming) {
      confirm_first_failure();
    }
  }
  if (phase_ == Phase::stopping && deadline_->expired()) {
    on_grace_period_over();
    begin_kill();
  }
  if (phase_ != Phase::killing) return;
  if (deadline_->expired()) {
    throw_error<LaunchError>(
        "{}SIGKILL does not end these processes: {}; the kernel may be waiting for a disk, a network file "
        "system or a GPU",
        context_, fmt::join(descendants(), ", "));
  }
  signal_descendants(SIGKILL);
}

void RankSupervisor::begin_stop(int signal) {
  if (phase_ != Phase::running && phase_ != Phase::confirming) return;
  // A user who closes the terminal does not wait for the grace period.
  constexpr milliseconds hangup_limit{1'000};
  sent_signal_ = signal;
  enter(Phase::stopping,
        signal == SIGHUP ? std::min(limits_.grace_period, hangup_limit) : limits_.grace_period);
  signal_ranks(signal);
}

void RankSupervisor::stop_leftovers() {
  if (leftovers_stopped_) return;
  leftovers_stopped_ = true;
  if (phase_ == Phase::confirming) confirm_first_failure();
  const bool was_stopping = phase_ == Phase::stopping;
  begin_stop(SIGTERM);
  if (phase_ == Phase::killing) return;
  const auto limit = leftover_limit();
  if (limit > milliseconds(0)) {
    signal_descendants(SIGTERM);
    signal_descendants(SIGCONT);
  }
  deadline_.emplace(was_stopping ? std::min(deadline_->remaining(), limit) : limit);
}

void RankSupervisor::begin_kill() {
  sent_signal_ = SIGKILL;
  enter(Phase::killing, kKillLimit);
}

void RankSupervisor::enter(Phase phase, milliseconds limit) {
  phase_ = phase;
  deadline_.emplace(limit);
}

}  // namespace lockstep::launch
