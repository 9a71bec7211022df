// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <sys/types.h>
#include <vector>

#include "base/deadline.h"
#include "launch/failure_report.h"

namespace lockstep::launch {

// A process that is stuck in the kernel, as on a dead network file system, survives SIGKILL.
constexpr std::chrono::seconds kKillLimit{10};

// While it exists, orphaned descendants of this process become its children instead of init's. So this
// process has no children exactly when it has no descendants.
class ChildSubreaper {
 public:
  ChildSubreaper();
  ~ChildSubreaper();
  ChildSubreaper(const ChildSubreaper&) = delete;
  ChildSubreaper& operator=(const ChildSubreaper&) = delete;
};

// All living descendants of this process, in no particular order.
std::vector<pid_t> descendants();

// Sends `signal` to the descendants that exist at this moment.
void signal_descendants(int signal);

// REQUIRES a ChildSubreaper. SIGKILLs and reaps descendants until none is left. False if some are left at the
// deadline.
bool kill_descendants(const Deadline& deadline = Deadline(kKillLimit));

// SIGKILLs the descendants that are in the session of `leader`, which may have ended, and what they have started, until
// none is left. False if some are left at the deadline.
bool kill_session(pid_t leader, const Deadline& deadline);

// Ended children of this process.
struct EndedChildren {
  // Most likely cause first; `rank` and `local_rank` are not set.
  std::vector<RankExit> exits{};
  bool any_left = true;  // whether this process has children
};

// Reaps all ended children. `first`: the child of the SIGCHLD; of several pending ones the kernel keeps the
// first.
EndedChildren reap_ended_children(pid_t first);

}  // namespace lockstep::launch
