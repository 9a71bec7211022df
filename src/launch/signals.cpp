// SPDX-License-Identifier: BSD-3-Clause
#include "launch/signals.h"

#include <csignal>
#include <initializer_list>
#include <string.h>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/text.h"

namespace lockstep::launch {

sigset_t watched_signals(const std::set<int>& stop_signals) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  for (const int signal : stop_signals) sigaddset(&set, signal);
  struct sigaction hangup {};
  ::sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler == SIG_IGN) sigdelset(&set, SIGHUP);
  return set;
}

void restore_default_signals() {
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  // A shell starts background jobs with SIGINT and SIGQUIT ignored; a rank must still end when they are
  // forwarded.
  for (const int signal : {SIGINT, SIGTERM, SIGQUIT, SIGCHLD, SIGPIPE})
    ::sigaction(signal, &standard, nullptr);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

namespace {

// 0 if there is no such signal.
int signal_number(std::string name) {
  if (name.starts_with("SIG")) name.erase(0, 3);
  for (int number = 1; number < SIGRTMIN; ++number) {
    const char* known = ::sigabbrev_np(number);
    if (known != nullptr && name == known) return number;
  }
  return 0;
}

}  // namespace

std::set<int> parse_signals(const std::string& text) {
  std::set<int> signals;
  for (auto name : split(text, ',')) {
    std::erase(name, ' ');
    const int number = signal_number(name);
    if (number == 0 || number == SIGKILL || number == SIGSTOP || number == SIGCHLD) {
      throw ArgumentError(
          fmt::format("signals-to-handle: \"{}\" is not a signal that a program can handle", name));
    }
    signals.insert(number);
  }
  return signals;
}

}  // namespace lockstep::launch
