// SPDX-License-Identifier: BSD-3-Clause
#include "launch/signals.h"

#include <initializer_list>

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
  // A shell starts background jobs with SIGINT and SIGQUIT ignored; a rank must still obey what is forwarded.
  for (const int signal : {SIGINT, SIGTERM, SIGQUIT, SIGCHLD, SIGPIPE})
    ::sigaction(signal, &standard, nullptr);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

}  // namespace lockstep::launch
