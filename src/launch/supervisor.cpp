// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cerrno>
#include <optional>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/deadline.h>
#include <lockstep/base/error.h>
#include <lockstep/base/host.h>
#include <lockstep/launch/failure_report.h>
#include <lockstep/launch/supervisor.h>

#include "launch/log_multiplexer.h"
#include "launch/process_tree.h"
#include "launch/rank_process.h"
#include "launch/signals.h"

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;

// How often processes are looked for that appeared while their family was being killed.
constexpr milliseconds kKillInterval{5};
// A process may be stuck in the kernel (a dead network file system); nobody can kill it then.
constexpr milliseconds kKillPatience{10'000};

UniqueFd open_signalfd() {
  const sigset_t signals = watched_signals();
  UniqueFd fd(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) throw LaunchError("the launch could not be started: signalfd: " + errno_text(errno));
  return fd;
}

std::string in_seconds(milliseconds span) {
  return fmt::format("{:g} s", static_cast<double>(span.count()) / 1000);
}

bool can_read(const pollfd& event) { return event.revents != 0; }

// One launch: a poll loop in one thread over the signals, the launcher's life and the ranks' output.
class Supervisor {
 public:
  Supervisor(const SupervisorOptions& options, int launcher)
      : options_(options), launcher_(launcher), signals_(open_signalfd()), logs_(options.mark_lines) {}

  int run();

 private:
  enum class Phase { running, stopping, killing };

  void start_ranks();
  void step();
  milliseconds patience() const;
  void read_signals();
  void on_stop_signal(int signal);
  void reap(pid_t first);
  void on_rank_exit(const RankExit& exit);
  void on_lost_output();
  void begin_stop(int signal);
  void stop_leftovers();
  void advance_phase();
  void enter_killing();
  void report();
  void flush();
  int result() const;

  const SupervisorOptions& options_;
  const int launcher_;
  const UniqueFd signals_;
  LogMultiplexer logs_;
  std::map<pid_t, int> alive_;  // pid -> rank
  Phase phase_ = Phase::running;
  std::optional<Deadline> deadline_;  // of the phase
  bool processes_left_ = true;
  bool leftovers_told_ = false;
  bool launcher_gone_ = false;
  bool output_lost_ = false;
  int stop_signal_ = 0;
  std::optional<RankExit> first_failure_;
  std::vector<RankExit> later_failures_;
};

int Supervisor::run() {
  try {
    start_ranks();
    while (processes_left_ && !launcher_gone_) step();
  } catch (...) {
    kill_descendants(Deadline(kKillPatience));
    throw;
  }
  if (launcher_gone_) {
    kill_descendants(Deadline(kKillPatience));
    return 128 + SIGKILL;
  }
  logs_.finish();
  report();
  flush();
  return result();
}

void Supervisor::start_ranks() {
  for (const auto& plan : options_.ranks) {
    RankProcess process =
        start_rank({.file = options_.file, .arguments = options_.arguments, .environment = plan.environment});
    alive_.emplace(process.pid, plan.rank);
    logs_.add_rank(plan.rank, std::move(process.out), std::move(process.err));
  }
}

void Supervisor::step() {
  std::vector<pollfd> events{{.fd = signals_.get(), .events = POLLIN, .revents = 0},
                             {.fd = launcher_, .events = POLLIN, .revents = 0}};
  logs_.watch(events);
  const auto timeout = patience();
  if (::poll(events.data(), events.size(), static_cast<int>(timeout.count())) < 0) {
    if (errno == EINTR) return;
    throw LaunchError("poll: " + errno_text(errno));
  }
  if (can_read(events[1])) {
    launcher_gone_ = true;
    return;
  }
  std::for_each(events.begin() + 2, events.end(), [&](const pollfd& event) { logs_.handle(event); });
  if (can_read(events[0])) read_signals();
  on_lost_output();
  advance_phase();
}

milliseconds Supervisor::patience() const {
  if (phase_ == Phase::killing) return kKillInterval;
  if (phase_ == Phase::stopping) return deadline_->remaining() + milliseconds(1);
  return milliseconds(-1);
}

void Supervisor::read_signals() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo == SIGCHLD) {
      reap(static_cast<pid_t>(info.ssi_pid));
    } else {
      on_stop_signal(static_cast<int>(info.ssi_signo));
    }
  }
}

void Supervisor::on_stop_signal(int signal) {
  const bool impatient = signal == SIGINT || signal == SIGQUIT;
  if (phase_ == Phase::stopping && impatient) {
    logs_.say(fmt::format("{} again: killing all ranks", signal_name(signal)));
    enter_killing();
  }
  if (phase_ != Phase::running) return;
  stop_signal_ = signal;
  logs_.say(fmt::format("{}: stopping all ranks (killed after {}{})", signal_name(signal),
                        in_seconds(options_.grace_period), impatient ? ", or at a second Ctrl-C" : ""));
  begin_stop(signal);
}

// Children that died at nearly the same time are reaped in no useful order, but of several SIGCHLDs the
// kernel keeps the first, which tells who died first. After that one, a crash is likelier to be a cause than
// an exit.
void Supervisor::reap(pid_t first) {
  std::vector<RankExit> exits;
  const auto take = [&](idtype_t type, pid_t pid) {
    siginfo_t info{};
    if (::waitid(type, static_cast<id_t>(pid), &info, WEXITED | WNOHANG) != 0) return errno;
    if (info.si_pid == 0) return EAGAIN;
    const auto rank = alive_.extract(info.si_pid);
    if (rank.empty()) return 0;
    const bool exited = info.si_code == CLD_EXITED;
    exits.push_back({.rank = rank.mapped(),
                     .pid = info.si_pid,
                     .code = exited ? info.si_status : 0,
                     .signal = exited ? 0 : info.si_status,
                     .core_dumped = info.si_code == CLD_DUMPED});
    return 0;
  };
  take(P_PID, first);
  const auto known = static_cast<std::ptrdiff_t>(exits.size());
  int outcome = 0;
  while (outcome == 0) outcome = take(P_ALL, 0);
  // Orphans come to this process, so without children there are no descendants either.
  processes_left_ = outcome != ECHILD;
  std::stable_partition(exits.begin() + known, exits.end(),
                        [](const auto& exit) { return exit.signal != 0; });
  for (const auto& exit : exits) on_rank_exit(exit);
  if (alive_.empty() && processes_left_) stop_leftovers();
}

void Supervisor::on_rank_exit(const RankExit& exit) {
  if (!exit.failed()) return;
  if (phase_ != Phase::running) {
    later_failures_.push_back(exit);
    return;
  }
  first_failure_ = exit;
  logs_.say(fmt::format("rank {} {}{}", exit.rank, describe(exit),
                        alive_.empty() ? "" : "; stopping the other ranks"));
  begin_stop(SIGTERM);
}

void Supervisor::on_lost_output() {
  const int error = logs_.stdout_error();
  if (error == 0 || output_lost_) return;
  output_lost_ = true;
  if (error != EPIPE) {
    logs_.say(
        fmt::format("warning: what the ranks write to stdout is lost from here on: {}", errno_text(error)));
    return;
  }
  logs_.say("nobody reads stdout any more: stopping all ranks");
  if (phase_ == Phase::running) stop_signal_ = SIGPIPE;
  begin_stop(SIGTERM);
}

void Supervisor::begin_stop(int signal) {
  if (phase_ != Phase::running) return;
  phase_ = Phase::stopping;
  deadline_.emplace(options_.grace_period);
  for (const auto& [pid, rank] : alive_) {
    ::kill(-pid, signal);
    ::kill(-pid, SIGCONT);  // a stopped process obeys nothing else
  }
}

void Supervisor::stop_leftovers() {
  if (leftovers_told_) return;
  leftovers_told_ = true;
  begin_stop(SIGTERM);
  signal_descendants(SIGTERM);
}

void Supervisor::advance_phase() {
  if (!processes_left_) return;
  if (phase_ == Phase::stopping && deadline_->expired()) {
    std::vector<int> ranks;
    for (const auto& [pid, rank] : alive_) ranks.push_back(rank);
    std::ranges::sort(ranks);
    logs_.say(fmt::format("still running after {}, so killed: {}", in_seconds(options_.grace_period),
                          ranks.empty() ? "processes that the ranks left behind"
                                        : fmt::format("rank {}", fmt::join(ranks, ", "))));
    enter_killing();
  }
  if (phase_ != Phase::killing) return;
  if (deadline_->expired()) {
    throw LaunchError(fmt::format("these processes are left, because even SIGKILL does not end them: {}",
                                  fmt::join(descendants(), ", ")));
  }
  signal_descendants(SIGKILL);
}

void Supervisor::enter_killing() {
  phase_ = Phase::killing;
  deadline_.emplace(kKillPatience);
}

void Supervisor::report() {
  if (!first_failure_) return;
  const FailureReport failure{.first = *first_failure_,
                              .host = host_name(),
                              .stderr_tail = logs_.stderr_tail(first_failure_->rank).lines(),
                              .later = later_failures_};
  for (const auto& line : report_lines(failure)) logs_.say(line);
}

// Waits for a slow reader as any program does, so with no deadline, but not against a user who wants it to
// end.
void Supervisor::flush() {
  while (logs_.pending()) {
    std::vector<pollfd> events{{.fd = signals_.get(), .events = POLLIN, .revents = 0},
                               {.fd = launcher_, .events = POLLIN, .revents = 0}};
    logs_.watch(events);
    if (::poll(events.data(), events.size(), -1) < 0) continue;
    if (can_read(events[1])) return;
    for (const auto& event : events) logs_.handle(event);
    signalfd_siginfo info{};
    if (can_read(events[0]) && ::read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
      if (info.ssi_signo != SIGCHLD) return;
    }
  }
}

int Supervisor::result() const {
  if (first_failure_) return exit_code(*first_failure_);
  return stop_signal_ != 0 ? 128 + stop_signal_ : 0;
}

}  // namespace

int supervise(const SupervisorOptions& options, int launcher) {
  // A write whose reader has gone shall fail, not kill.
  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignore, nullptr);
  return Supervisor(options, launcher).run();
}

}  // namespace lockstep::launch
