// SPDX-License-Identifier: BSD-3-Clause
#include "launch/guard.h"

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/base/log.h>

#include "base/limits.h"
#include "base/throw_error.h"
#include "launch/failure_report.h"
#include "launch/process_tree.h"

namespace lockstep::launch {
namespace {

constexpr const char* kNotStarted = "the ranks could not be started";

[[noreturn]] void fail(const char* step) {
  throw_error<LaunchError>("{}: {}: {}", kNotStarted, step, start_error_text(errno));
}

[[noreturn]] void become_guard(const std::function<int(int)>& body, bool detach, int parent) {
  // The terminal and the shell signal the parent's process group; the parent forwards those signals once.
  if (detach) {
    ::setsid();
    ::prctl(PR_SET_NAME, "rank-guard");  // `killall -9 lockstep` must spare one of the two
  }
  int code = 1;
  try {
    const ChildSubreaper subreaper;
    code = body(parent);
  } catch (const std::exception& error) {
    log(LogLevel::error, exception_text(error));
  }
  std::fflush(nullptr);
  ::_exit(code);
}

// The threads that run while the guard does.
class Companions {
 public:
  explicit Companions(const std::vector<GuardOptions::Companion>& companions)
      : stop_(::eventfd(0, EFD_CLOEXEC)) {
    if (!stop_) fail("eventfd");
    try {
      for (const auto& each : companions) {
        threads_.push_back(
            start_thread<std::thread>(each.purpose, [each, stop = stop_.get()] { run(each, stop); }));
      }
    } catch (...) {
      end();
      throw;
    }
  }
  ~Companions() { end(); }
  Companions(const Companions&) = delete;
  Companions& operator=(const Companions&) = delete;

 private:
  // The ranks do not end because of it.
  static void run(const GuardOptions::Companion& companion, int stop) noexcept {
    try {
      companion.body(stop);
    } catch (const std::exception& error) {
      log(LogLevel::warning, fmt::format("{} has ended: {}", companion.purpose, exception_text(error)));
    }
  }

  void end() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(stop_.get(), &one, sizeof(one));
    for (auto& thread : threads_) thread.join();
  }

  UniqueFd stop_;
  std::vector<std::thread> threads_;
};

void forward_signals(int signals, pid_t guard) {
  signalfd_siginfo info{};
  while (::read(signals, &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo != SIGCHLD) ::kill(guard, static_cast<int>(info.ssi_signo));
  }
}

GuardExit wait_for_guard(pid_t guard, int life, int signals, int owner) {
  std::array<pollfd, 3> events{pollfd{.fd = life, .events = POLLIN, .revents = 0},
                               pollfd{.fd = signals, .events = POLLIN, .revents = 0},
                               pollfd{.fd = owner, .events = POLLIN, .revents = 0}};
  while (events[0].revents == 0) {
    if (::poll(events.data(), events.size(), -1) < 0) {
      if (errno != EINTR) fail("poll");
      continue;
    }
    if (events[2].revents != 0) return {.all_killed = kill_descendants()};
    forward_signals(signals, guard);
  }
  siginfo_t info{};
  if (::waitid(P_PID, static_cast<id_t>(guard), &info, WEXITED) != 0) fail("waitid");
  if (info.si_code == CLD_EXITED) return {.code = info.si_status};
  return {.code = 128 + info.si_status, .signal = info.si_status, .all_killed = kill_descendants()};
}

}  // namespace

std::string describe(const GuardExit& exit) {
  return fmt::format("the supervisor of the ranks was killed by {}; {}", signal_name(exit.signal),
                     exit.all_killed ? "all ranks were killed too" : "some ranks could not be killed");
}

UniqueFd open_pidfd(pid_t pid) {
  UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!fd) throw_error<LaunchError>("{}: {}", kNotStarted, call_error_text("pidfd_open", errno));
  return fd;
}

GuardExit run_guarded(const std::function<int(int parent)>& body, const GuardOptions& options) {
  const sigset_t watched = watched_signals(options.signals);
  const BlockedSignals blocked(watched);
  const ChildSubreaper subreaper;
  // Opened before the fork, so that the guard cannot miss an early death.
  const auto self = open_pidfd(::getpid());
  std::fflush(nullptr);
  const pid_t guard = ::fork();
  if (guard < 0) fail("fork");
  if (guard == 0) become_guard(body, options.detach, self.get());
  const auto life = open_pidfd(guard);
  const UniqueFd signals(::signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals) fail("signalfd");
  if (options.before_wait) options.before_wait({life.get(), signals.get()});
  if (options.beside.empty()) return wait_for_guard(guard, life.get(), signals.get(), options.owner);
  const Companions companions(options.beside);
  return wait_for_guard(guard, life.get(), signals.get(), options.owner);
}

sigset_t watched_signals(const std::set<int>& signals) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  for (const int signal : signals) sigaddset(&set, signal);
  struct sigaction hangup {};
  ::sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler == SIG_IGN) sigdelset(&set, SIGHUP);
  return set;
}

}  // namespace lockstep::launch
