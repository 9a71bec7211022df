// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <sys/types.h>

#include <lockstep/base/unique_fd.h>

#include "rendezvous/spawn_rank.h"

namespace lockstep::rendezvous {

// The caller's end of a run of spawn().
struct SpawnGuard {
  pid_t pid = -1;
  // Readable once the ranks run; at its end when no process of the run is left. Shutting down its sending
  // side asks the ranks to stop.
  UniqueFd line{};
};

// Forks off two guards and the ranks below them: caller - outer guard - inner guard - ranks.
//
// The inner one starts the ranks, sees how they end and stops them; the outer one kills everything when the
// inner one or the caller is killed, the inner one does when the outer one is. Both adopt every orphan below
// them, so that also what ranks have started is found. Neither is the caller, which therefore keeps its own
// ways with signals and children.
//
// Writes to the plan's board: pids before the line becomes readable, the verdict before its end.
// REQUIRES one thread in this process. Throws LaunchError when there can be no guard.
SpawnGuard start_spawn_guard(const SpawnPlan& plan);

}  // namespace lockstep::rendezvous
