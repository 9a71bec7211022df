// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <set>
#include <signal.h>
#include <string>
#include <sys/types.h>
#include <vector>

#include "base/unique_fd.h"

namespace lockstep::launch {

// Note [Guards]
//
// The ranks of a run are children of a process of their own, the guard, which supervises them. A second
// process above it, which calls run_guarded(), waits for the guard. Each of the two kills all descendants
// when the other one is killed, SIGKILL included:
//
//   `lockstep run`  launcher - rank-guard - ranks
//   spawn()         program - spawn-guard - spawn-watch - ranks     (spawn-guard calls run_guarded())
//
// PR_SET_PDEATHSIG alone would end the ranks, but not what they have started. So both processes adopt the
// orphans below them (PR_SET_CHILD_SUBREAPER). spawn() needs a process more because a library must not adopt
// the orphans of the program that uses it.
struct GuardOptions {
  // Whether the guard gets a session and the process name "rank-guard"; else `body` sees to that.
  bool detach = true;
  std::set<int> signals = {};  // forwarded to the guard
  int owner = -1;              // a pidfd; when it becomes readable, all descendants are killed
  // Called in this process before it waits, with the descriptors that it needs for that.
  std::function<void(const std::vector<int>& needed)> before_wait = {};
  // Each runs in a thread of this process until the descriptor that it gets becomes readable: the guard has
  // ended.
  struct Companion {
    std::string purpose;  // for an error
    std::function<void(int stop)> body;
  };
  std::vector<Companion> beside = {};
};

// How the guard ended.
struct GuardExit {
  int code = 0;
  int signal = 0;          // that killed the guard, or 0
  bool all_killed = true;  // after such a signal: no descendant is left
};

// After a signal, for users: "the supervisor of the ranks was killed by SIGKILL; all ranks were killed too".
std::string describe(const GuardExit& exit);

// Runs `body` in a child process, the guard, and waits for its end. `body` gets the pidfd of the calling
// process: when it becomes readable, `body` must kill all descendants and return. It returns the exit code of
// the guard. Exceptions are logged and become exit code 1.
//
// The guard has `signals` and SIGCHLD blocked; `body` reads them with
// signalfd(2). REQUIRES that the calling process has one thread and no children. Throws LaunchError when no
// guard can be started.
GuardExit run_guarded(const std::function<int(int parent)>& body, const GuardOptions& options);

// A descriptor that becomes readable when the process has ended. Throws LaunchError.
UniqueFd open_pidfd(pid_t pid);

// SIGCHLD and `signals`, without SIGHUP if it is ignored (nohup).
sigset_t watched_signals(const std::set<int>& signals);

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

}  // namespace lockstep::launch
