// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <sys/types.h>
#include <vector>

#include <lockstep/launch/failure_report.h>

namespace lockstep::launch {

/// Children of this process that ended, as one search found them.
struct EndedChildren {
  /// Likeliest cause first, `rank` and `local_rank` not filled in.
  std::vector<RankExit> exits{};
  bool any_left = true;  ///< false: this process has no children
};

/// Reaps whoever has ended. `first` is the child that a SIGCHLD told of: of several, the kernel keeps the one
/// that was sent first, which tells who ended first.
EndedChildren reap_ended_children(pid_t first);

}  // namespace lockstep::launch
