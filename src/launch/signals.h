// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <set>
#include <signal.h>
#include <string>

namespace lockstep::launch {

// SIGCHLD and `stop_signals`, without SIGHUP if it is ignored (nohup).
sigset_t watched_signals(const std::set<int>& stop_signals);

// Blocks `signals` in this thread while it exists.
class BlockedSignals {
 public:
  explicit BlockedSignals(const sigset_t& signals) { ::pthread_sigmask(SIG_BLOCK, &signals, &before_); }
  ~BlockedSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_{};
};

// Before exec: unblocks all signals and restores default actions, except an ignored SIGHUP (nohup).
// Async-signal-safe.
void restore_default_signals();

// Parses "SIGTERM,SIGUSR1" for LaunchOptions::stop_signals. Throws ArgumentError for a name that is not a
// signal or cannot be handled.
std::set<int> parse_signals(const std::string& text);

}  // namespace lockstep::launch
