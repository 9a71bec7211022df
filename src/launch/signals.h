// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <set>
#include <signal.h>

namespace lockstep::launch {

/// `stop_signals`, of which SIGHUP not where it is ignored already (nohup), with SIGCHLD on top.
sigset_t watched_signals(const std::set<int>& stop_signals);

/// Blocks `signals` in this thread while it lives.
class BlockedSignals {
 public:
  explicit BlockedSignals(const sigset_t& signals) { ::pthread_sigmask(SIG_BLOCK, &signals, &before_); }
  ~BlockedSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_{};
};

/// For a process about to become another program: nothing blocked, nothing ignored but SIGHUP under nohup.
/// Async-signal-safe.
void restore_default_signals();

}  // namespace lockstep::launch
