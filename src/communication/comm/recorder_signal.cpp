// SPDX-License-Identifier: BSD-3-Clause
#include "comm/recorder_signal.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/env.h"
#include "base/limits.h"
#include "base/throw_error.h"
#include "base/unique_fd.h"
#include "observe/find_runs.h"
#include "observe/recorder_files.h"

namespace lockstep::comm {
namespace {

constexpr const char* kVariable = "LOCKSTEP_RECORDER_SIGNAL";

// A handler can reach nothing but globals.
std::atomic<int> wake_up{-1};

// Calls nothing that is not async-signal-safe.
void wake_writer(int /*signal*/) {
  const int interrupted_errno = errno;
  (void)!::write(wake_up, "", 1);
  errno = interrupted_errno;
}

int number_of(const std::string& name) {
  if (name == "SIGUSR1") return SIGUSR1;
  if (name == "SIGUSR2") return SIGUSR2;
  throw_error<ArgumentError>("{}: \"{}\" is not a signal that can be used; use SIGUSR1 or SIGUSR2", kVariable,
                             name);
}

void require_unhandled(int signal, const std::string& name) {
  struct sigaction now {};
  ::sigaction(signal, nullptr, &now);
  if ((now.sa_flags & SA_SIGINFO) == 0 && (now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN)) return;
  throw_error<ArgumentError>("{}: the program handles {} itself; use the other one of SIGUSR1 and SIGUSR2",
                             kVariable, name);
}

void write_files(const std::string& folder) noexcept {
  try {
    const auto run = observe::find_run(std::to_string(::getpid())).read();
    if (!observe::replace_recorder_files(run, folder)) return;  // another rank has the same signal
    log(LogLevel::info, fmt::format("{}: the recorder files of {} ranks were written to {}", kVariable,
                                    run.ranks.size(), folder));
  } catch (const std::exception& error) {
    log(LogLevel::warning, fmt::format("{}: {}", kVariable, error.what()));
  }
}

// It never ends: /proc of a stuck process and a folder on a dead file system may never answer.
void start_writer(UniqueFd signals, const std::string& folder) {
  sigset_t all;
  sigset_t former;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &former);  // the program's handlers run in its own threads
  try {
    start_thread<std::thread>("recorder files", [signals = std::move(signals), folder] {
      std::array<char, 16> bytes{};  // several signals that wait are one
      while (::read(signals.get(), bytes.data(), bytes.size()) > 0) write_files(folder);
    }).detach();
  } catch (...) {
    ::pthread_sigmask(SIG_SETMASK, &former, nullptr);
    throw;
  }
  ::pthread_sigmask(SIG_SETMASK, &former, nullptr);
}

}  // namespace

void write_recorder_files_on_signal() {
  const Env env;
  const auto name = env.get(kVariable);
  if (!name || wake_up >= 0) return;
  const int signal = number_of(*name);
  const auto folder = env.get(observe::kRecorderVariable);
  if (!folder) {
    throw_error<ArgumentError>("{} needs {}, the folder for the recorder files; set it", kVariable,
                               observe::kRecorderVariable);
  }
  require_unhandled(signal, *name);
  auto pipe = make_pipe();
  // The handler does not wait for the writer.
  if (!pipe.read || ::fcntl(pipe.write.get(), F_SETFL, O_NONBLOCK) != 0)
    throw_error<Error>("{}: pipe: {}", kVariable, errno_text(errno));
  start_writer(std::move(pipe.read), *folder);
  wake_up = pipe.write.release();
  struct sigaction action {};
  action.sa_handler = wake_writer;
  action.sa_flags = SA_RESTART;
  ::sigaction(signal, &action, nullptr);
}

bool is_recorder_signal(int signal) {
  struct sigaction now {};
  return ::sigaction(signal, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) == 0 &&
         now.sa_handler == wake_writer;
}

}  // namespace lockstep::comm
