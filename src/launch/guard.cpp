// SPDX-License-Identifier: BSD-3-Clause
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/base/deadline.h>
#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/base/unique_fd.h>
#include <lockstep/launch/failure_report.h>
#include <lockstep/launch/guard.h>

#include "launch/process_tree.h"
#include "launch/signals.h"

namespace lockstep::launch {
namespace {

constexpr std::chrono::seconds kKillPatience{10};

[[noreturn]] void fail(const char* step) {
  throw LaunchError(fmt::format("the launch could not be started: {}: {}", step, errno_text(errno)));
}

[[noreturn]] void become_guard(const std::function<int(int)>& body, int launcher) {
  // Away from the terminal's and a shell's signals to the launcher's group: those come once, passed on.
  ::setsid();
  // `killall -9 lockstep` must not reach both.
  ::prctl(PR_SET_NAME, "rank-guard");
  int code = 1;
  try {
    const ChildSubreaper subreaper;
    code = body(launcher);
  } catch (const std::exception& error) {
    log(LogLevel::error, error.what());
  }
  std::fflush(nullptr);
  ::_exit(code);
}

// A thread that runs while the guard does.
class Companion {
 public:
  explicit Companion(const std::function<void(int)>& body) : stop_(::eventfd(0, EFD_CLOEXEC)) {
    if (!stop_) fail("eventfd");
    thread_ = std::thread(body, stop_.get());
  }
  ~Companion() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(stop_.get(), &one, sizeof(one));
    thread_.join();
  }
  Companion(const Companion&) = delete;
  Companion& operator=(const Companion&) = delete;

 private:
  UniqueFd stop_;
  std::thread thread_;
};

std::optional<siginfo_t> exit_of(pid_t child) {
  siginfo_t info{};
  if (::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG) != 0) fail("waitid");
  return info.si_pid == child ? std::optional(info) : std::nullopt;
}

int after_guard_was_killed(int signal) {
  const bool clean = kill_descendants(Deadline(kKillPatience));
  log(LogLevel::error,
      fmt::format("the process that watches over the ranks was killed by {}; {}", signal_name(signal),
                  clean ? "all ranks were killed too" : "some ranks could not be killed"));
  return 128 + signal;
}

int wait_for_guard(pid_t guard, const sigset_t& signals) {
  for (;;) {
    siginfo_t info{};
    if (::sigwaitinfo(&signals, &info) < 0) continue;
    if (info.si_signo != SIGCHLD) {
      ::kill(guard, info.si_signo);
    } else if (const auto exit = exit_of(guard)) {
      return exit->si_code == CLD_EXITED ? exit->si_status : after_guard_was_killed(exit->si_status);
    }
  }
}

}  // namespace

int run_guarded(const std::function<int(int launcher)>& body, const std::set<int>& stop_signals,
                const std::function<void(int stop)>& beside) {
  const sigset_t signals = watched_signals(stop_signals);
  const BlockedSignals blocked(signals);
  const ChildSubreaper subreaper;
  // Opened before the fork, so that the guard cannot miss an early death.
  const UniqueFd self(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  if (!self) fail("pidfd_open");
  std::fflush(nullptr);
  const pid_t guard = ::fork();
  if (guard < 0) fail("fork");
  if (guard == 0) become_guard(body, self.get());
  if (!beside) return wait_for_guard(guard, signals);
  const Companion companion(beside);
  return wait_for_guard(guard, signals);
}

}  // namespace lockstep::launch
