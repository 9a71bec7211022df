// SPDX-License-Identifier: BSD-3-Clause
#include "rendezvous/spawn_guard.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <iostream>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/base/deadline.h>
#include <lockstep/base/error.h>
#include <lockstep/launch/failure_report.h>

#include "launch/process_tree.h"
#include "launch/signals.h"
#include "rendezvous/spawn_supervisor.h"

namespace lockstep::rendezvous {
namespace {

constexpr std::chrono::seconds kGuardKillPatience{10};

[[noreturn]] void fail_to_spawn(const char* step) {
  throw LaunchError(fmt::format("spawn: the ranks could not be started: {}: {}", step, errno_text(errno)));
}

UniqueFd pidfd_of(pid_t pid) {
  UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!fd) fail_to_spawn("pidfd_open");
  return fd;
}

sigset_t all_signals() {
  sigset_t set;
  sigfillset(&set);
  return set;
}

void flush_streams() {
  for (std::ostream* stream : {&std::cout, &std::cerr, &std::clog}) stream->flush();
  std::fflush(nullptr);
}

// Away from the signals of the caller's terminal and process group.
void stand_apart(const char* name, std::vector<int> needed) {
  ::setsid();
  ::prctl(PR_SET_NAME, name);
  // What the caller has open is not to stay so because of us.
  needed.insert(needed.end(), {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO});
  std::ranges::sort(needed);
  unsigned next = 0;
  for (const int fd : needed) {
    if (static_cast<unsigned>(fd) > next) ::close_range(next, static_cast<unsigned>(fd) - 1, 0);
    next = static_cast<unsigned>(fd) + 1;
  }
  ::close_range(next, ~0U, 0);
}

void tell_trouble(const SpawnBoard& board, const std::string& text) {
  auto& verdict = board.verdict();
  if (verdict.kind != SpawnVerdict::Kind::none) return;
  verdict.text.set(text);
  verdict.kind = SpawnVerdict::Kind::trouble;
}

struct Line {
  UniqueFd ours{};
  UniqueFd guards{};
};

Line make_line() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) fail_to_spawn("socketpair");
  return {.ours = UniqueFd(ends[0]), .guards = UniqueFd(ends[1])};
}

[[noreturn]] void be_inner_guard(const SpawnPlan& plan, const Line& line, int outer) {
  try {
    const launch::ChildSubreaper subreaper;
    SpawnSupervisor supervisor(plan, line.guards.get(), outer);
    supervisor.start_ranks({line.ours.get(), line.guards.get(), outer});
    stand_apart("spawn-watch", {line.guards.get(), outer, supervisor.signal_fd()});
    supervisor.run();
  } catch (const std::exception& error) {
    launch::kill_descendants(Deadline(kGuardKillPatience));
    tell_trouble(plan.board, error.what());
  }
  ::_exit(0);
}

// Until the inner guard has ended by itself, or it or the caller has been killed.
void watch(const SpawnBoard& board, pid_t inner, const UniqueFd& caller) {
  const auto inner_life = pidfd_of(inner);
  std::array<pollfd, 2> events{pollfd{.fd = inner_life.get(), .events = POLLIN, .revents = 0},
                               pollfd{.fd = caller.get(), .events = POLLIN, .revents = 0}};
  while (::poll(events.data(), events.size(), -1) < 0 && errno == EINTR) {
  }
  if (events[0].revents == 0) return;
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(inner), &info, WEXITED);
  if (info.si_code == CLD_EXITED) return;
  tell_trouble(board, fmt::format("spawn: the process that watches over the ranks was killed by {}; all "
                                  "ranks were killed too",
                                  launch::signal_name(info.si_status)));
}

[[noreturn]] void be_outer_guard(const SpawnPlan& plan, const Line& line, const UniqueFd& caller) {
  try {
    // A caller that ignores it has its children reaped by the kernel, whoever waits for them.
    ::signal(SIGCHLD, SIG_DFL);
    const launch::ChildSubreaper subreaper;
    const auto self = pidfd_of(::getpid());
    const pid_t inner = ::fork();
    if (inner < 0) fail_to_spawn("fork");
    if (inner == 0) be_inner_guard(plan, line, self.get());
    stand_apart("spawn-guard", {line.guards.get(), caller.get()});
    watch(plan.board, inner, caller);
    launch::kill_descendants(Deadline(kGuardKillPatience));
  } catch (const std::exception& error) {
    launch::kill_descendants(Deadline(kGuardKillPatience));
    tell_trouble(plan.board, error.what());
  }
  ::_exit(0);
}

}  // namespace

SpawnGuard start_spawn_guard(const SpawnPlan& plan) {
  auto line = make_line();
  // Opened before the fork, so that the guard cannot miss an early death.
  const auto caller = pidfd_of(::getpid());
  flush_streams();
  const launch::BlockedSignals blocked(all_signals());
  const pid_t pid = ::fork();
  if (pid < 0) fail_to_spawn("fork");
  if (pid == 0) be_outer_guard(plan, line, caller);
  return {.pid = pid, .line = std::move(line.ours)};
}

}  // namespace lockstep::rendezvous
