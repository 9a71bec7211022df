// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/spawn_supervisor.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>

#include "launch/ended_children.h"
#include "launch/process_tree.h"

namespace lockstep::rendezvous {
namespace {

using std::chrono::milliseconds;

// How often processes are looked for that appeared while their family was being killed.
constexpr milliseconds kKillInterval{5};
// A process may be stuck in the kernel (a dead network file system); nobody can kill it then.
constexpr milliseconds kKillLimit{10'000};
// A rank that fails takes a moment to unwind, in which others may see that it is gone, and fail before it.
constexpr milliseconds kDoubtLimit{500};

UniqueFd open_child_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  UniqueFd fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) throw LaunchError("spawn: the ranks could not be started: signalfd: " + errno_text(errno));
  return fd;
}

std::vector<int> ranks_in(const std::map<pid_t, int>& alive) {
  std::vector<int> ranks;
  ranks.reserve(alive.size());
  for (const auto& [pid, rank] : alive) ranks.push_back(rank);
  std::ranges::sort(ranks);
  return ranks;
}

}  // namespace

SpawnSupervisor::SpawnSupervisor(const SpawnPlan& plan, int line, int outer)
    : plan_(plan), line_(line), outer_(outer), signals_(open_child_signals()) {
  if (plan.options.timeout.count() > 0) deadline_.emplace(plan.options.timeout);
}

void SpawnSupervisor::start_ranks(std::vector<int> foreign) {
  foreign.push_back(signals_.get());
  const pid_t self = ::getpid();
  for (int rank = 0; rank < plan_.options.nprocs; ++rank) {
    const pid_t pid = ::fork();
    if (pid < 0) {
      throw LaunchError(fmt::format("spawn: rank {} of {} could not be started: {}", rank,
                                    plan_.options.nprocs, errno_text(errno)));
    }
    if (pid == 0) be_spawned_rank(plan_, rank, self, foreign);
    alive_.emplace(pid, rank);
    plan_.board.rank(rank).pid = pid;
  }
  const char started = '.';
  static_cast<void>(::send(line_, &started, 1, MSG_NOSIGNAL));
}

void SpawnSupervisor::run() {
  while (processes_left_ && !outer_gone_) step();
  if (outer_gone_) {
    launch::kill_descendants(Deadline(kKillLimit));
  } else {
    judge();
  }
}

void SpawnSupervisor::step() {
  std::array<pollfd, 3> events{pollfd{.fd = signals_.get(), .events = POLLIN, .revents = 0},
                               pollfd{.fd = outer_, .events = POLLIN, .revents = 0},
                               // A negative one is passed over: its end is readable for ever.
                               pollfd{.fd = stop_asked_ ? -1 : line_, .events = POLLIN, .revents = 0}};
  if (::poll(events.data(), events.size(), patience()) < 0) {
    if (errno == EINTR) return;
    throw LaunchError("spawn: poll: " + errno_text(errno));
  }
  if (events[1].revents != 0) {
    outer_gone_ = true;
    return;
  }
  if (events[0].revents != 0) read_signals();
  if (events[2].revents != 0) read_line();
  advance_phase();
}

int SpawnSupervisor::patience() const {
  if (phase_ == Phase::killing) return static_cast<int>(kKillInterval.count());
  if (!deadline_) return -1;
  return static_cast<int>(std::min<std::int64_t>(deadline_->remaining().count() + 1, 3'600'000));
}

// The caller sends nothing: it can only be at its end.
void SpawnSupervisor::read_line() {
  stop_asked_ = true;
  begin_stop();
}

void SpawnSupervisor::read_signals() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof(info)) == sizeof(info)) reap(static_cast<pid_t>(info.ssi_pid));
}

void SpawnSupervisor::reap(pid_t first) {
  const bool had_ranks = !alive_.empty();
  const auto ended = launch::reap_ended_children(first);
  // Orphans come to this process, so without children there are no descendants either.
  processes_left_ = ended.any_left;
  std::vector<launch::RankExit> exits;
  for (const auto& child : ended.exits) {
    const auto rank = alive_.extract(child.pid);
    if (rank.empty()) continue;
    exits.push_back(child);
    exits.back().rank = rank.mapped();
  }
  for (const auto& exit : exits) on_rank_exit(exit);
  if (!had_ranks || !alive_.empty() || !processes_left_) return;
  // What ranks have started was asked to stop with them; after a good end it is now.
  if (phase_ == Phase::stopping) enter(Phase::killing, kKillLimit);
  begin_stop();
}

bool SpawnSupervisor::is_consequence(const launch::RankExit& exit) const {
  const auto& told = plan_.board.rank(exit.rank);
  return told.raised && told.peer_lost;
}

void SpawnSupervisor::on_rank_exit(const launch::RankExit& exit) {
  if (!exit.failed() || phase_ == Phase::stopping || phase_ == Phase::killing) return;
  if (!cause_ || (is_consequence(*cause_) && !is_consequence(exit))) cause_ = exit;
  if (!is_consequence(*cause_)) {
    begin_stop();
  } else if (phase_ == Phase::running) {
    enter(Phase::doubting, kDoubtLimit);
  }
}

void SpawnSupervisor::advance_phase() {
  if (!processes_left_) return;
  if (deadline_ && deadline_->expired()) on_timeout();
  if (phase_ == Phase::killing) launch::signal_descendants(SIGKILL);
}

void SpawnSupervisor::on_timeout() {
  switch (phase_) {
    case Phase::running: {
      auto& verdict = plan_.board.verdict();
      verdict.text.set(fmt::format("{}", fmt::join(ranks_in(alive_), ", ")));
      verdict.kind = SpawnVerdict::Kind::timeout;
      return begin_stop();
    }
    case Phase::doubting:
      return begin_stop();
    case Phase::stopping:
      return enter(Phase::killing, kKillLimit);
    case Phase::killing:
      throw LaunchError(
          fmt::format("spawn: these processes are left, because even SIGKILL does not end them: {}",
                      fmt::join(launch::descendants(), ", ")));
  }
}

void SpawnSupervisor::begin_stop() {
  if (phase_ == Phase::stopping || phase_ == Phase::killing) return;
  enter(Phase::stopping, plan_.options.grace_period);
  launch::signal_descendants(SIGTERM);
  launch::signal_descendants(SIGCONT);  // a stopped process obeys nothing else
}

void SpawnSupervisor::enter(Phase phase, milliseconds limit) {
  phase_ = phase;
  deadline_.emplace(limit);
}

void SpawnSupervisor::judge() {
  auto& verdict = plan_.board.verdict();
  if (verdict.kind != SpawnVerdict::Kind::none) return;
  using Kind = SpawnVerdict::Kind;
  if (!cause_) {
    verdict.kind = stop_asked_ ? Kind::stopped : Kind::well;
    return;
  }
  verdict.rank = cause_->rank;
  verdict.code = cause_->code;
  verdict.signal = cause_->signal;
  verdict.core_dumped = cause_->core_dumped;
  verdict.kind = plan_.board.rank(cause_->rank).raised && cause_->signal == 0 ? Kind::raised : Kind::exited;
}

}  // namespace lockstep::rendezvous
