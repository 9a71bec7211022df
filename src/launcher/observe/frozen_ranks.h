// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "observe/run.h"

namespace lockstep::observe {

// A rank that makes no progress and waits for no other rank.
struct FrozenRank {
  const Rank* rank = nullptr;
  std::int64_t silent_for = 0;  // nanoseconds without progress
};

// What the process of a rank does, apart from what the rank publishes. Asked for only when it counts.
struct ProcessView {
  std::function<std::uint64_t(const Rank& rank)> bytes{};  // read and written until now
  std::function<bool(const Rank& rank)> is_traced{};       // by a debugger
  std::function<bool(const Rank& rank)> waits_in_kernel{};
};

// Finds ranks of a run that are frozen. A rank makes progress when something that it publishes changes: steps, samples,
// phase, calls, numbers of report(), the file that it reads. While it saves or loads a checkpoint or waits for a batch, the
// bytes that its process reads and writes count as well, and during a checkpoint a thread that waits for the disk in the
// kernel. The time in which a debugger traces the process does not count. A rank that waits is not frozen unless it is stopped: it is in
// a call, has begun one that another rank has not entered, has seen one fail, or forms a group. One that has left the
// run is not frozen.
class FrozenRanks {
 public:
  explicit FrozenRanks(std::chrono::nanoseconds limit) : limit_(limit.count()) {}

  // The ranks of `run` that have made no progress for the limit. Time between two looks counts for at most a
  // quarter of the limit, because a machine that stands still stops this process too.
  std::vector<FrozenRank> look(const Run& run, const ProcessView& view);

 private:
  using Key = std::pair<std::int64_t, std::int64_t>;  // process and thread

  struct Known {
    std::vector<std::uint64_t> published{};
    std::int64_t silent_for = 0;
    std::int64_t looked_at = 0;
  };

  std::int64_t limit_;
  std::map<Key, Known> known_{};
};

}  // namespace lockstep::observe
