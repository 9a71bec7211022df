// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "observe/run.h"

// Parts of sentences about a run.

namespace lockstep::observe {

// "4.2 s"
inline std::string seconds_text(std::int64_t nanoseconds) {
  return fmt::format("{:.1f} s", static_cast<double>(nanoseconds) / 1e9);
}

// "rank 0", "ranks 0, 2 and 3"
inline std::string list_ranks(std::vector<int> ranks) {
  std::ranges::sort(ranks);
  if (ranks.size() == 1) return fmt::format("rank {}", ranks.front());
  const int last = ranks.back();
  ranks.pop_back();
  return fmt::format("ranks {} and {}", fmt::join(ranks, ", "), last);
}

// "; its worker reads /data/x.jpg, 4.1 s" of a rank that waits for a batch; empty if no file is known.
inline std::string reading_text(const Run& run, const Rank& rank) {
  if (!rank.progress || rank.progress->reading.empty()) return "";
  return fmt::format("; its worker reads {}, {}", rank.progress->reading,
                     seconds_text(run.taken_at - rank.progress->reading_since));
}

}  // namespace lockstep::observe
