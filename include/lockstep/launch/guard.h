// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <set>

namespace lockstep::launch {

/// Runs `body` in a child process, the guard, and returns the exit code that `body` returns.
///
/// Why two processes: what a user starts can be killed with SIGKILL, and then nothing in it can clean up any
/// more; its ranks could be told by the kernel (PR_SET_PDEATHSIG), but not what the ranks started in turn,
/// which would then belong to init. So the ranks are children of a second process, which adopts every orphan
/// below it (PR_SET_CHILD_SUBREAPER), lives in a session of its own, and learns of the first one's death
/// through the descriptor that `body` is given: it becomes readable then, and `body` must kill all
/// descendants and return. The first process in turn adopts and kills everything should the guard be the one
/// that is killed.
///
/// The calling process waits and passes `stop_signals` on to the guard, where they are blocked: `body` reads
/// them with signalfd(2) or sigwaitinfo(2), SIGCHLD likewise. Meanwhile `beside`, if there is one, runs in a
/// thread of the calling process; the descriptor that it is given becomes readable when the guard has ended,
/// and it must return then. REQUIRES that the calling process has one thread and no children. Throws
/// LaunchError when there can be no guard.
int run_guarded(const std::function<int(int launcher)>& body, const std::set<int>& stop_signals,
                const std::function<void(int stop)>& beside = {});

}  // namespace lockstep::launch
