// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/rank_progress.h"
#include "observe/run.h"
#include "observe/status_layout.h"

namespace lockstep::observe {

// What a rank publishes in one group, mapped read-only, or a copy where no process of the run holds the memory open.
struct Publication {
  std::string group{};
  std::shared_ptr<const RankStatus> status{};
  int pid = 0;     // of the rank as this process sees it; 0: it has ended
  int thread = 0;  // its thread as this process sees it; 0: it has ended
};

// How far a rank has come, mapped read-only.
struct PublishedProgress {
  std::shared_ptr<const RankProgress> memory{};
  int pid = 0;  // of the rank as this process sees it; 0: it has ended
  int thread = 0;
};

// A run of this host that can be read at any time: its ranks may be stopped, stuck or dead.
struct ObservedRun {
  std::string id{};
  std::vector<int> pids{};  // of its ranks; if all have ended, of the processes that have mapped their memory
  std::vector<Publication> publications{};
  std::vector<PublishedProgress> progress{};
  int restarts = 0;
  std::string problem{};  // why its ranks cannot be read: another version of Lockstep

  // `with_activity`: with Rank::activity, which takes a look at all mappings of a rank's process.
  Run read(bool with_activity = true) const;
};

}  // namespace lockstep::observe
