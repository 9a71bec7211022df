// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "observe/verdict.h"

namespace lockstep::observe {

// A rank whose computation (slow) or whose wait for data (starved) makes each step of the others longer, or
// communication that takes longer than before (slow_link): judged by the last steps of ranks that make calls in one
// group. nullopt if there is none, if the last step is long ago, and for pipelines, whose ranks compute for different
// times.
std::optional<Verdict> judge_steps(const Run& run);

// A rank of the run that was judged.
struct LastRank {
  const Rank* rank = nullptr;  // its progress is known
  std::string text{};          // as of a Verdict
};

// The rank that is last in each of so many last steps: it spends `factor` times as long by itself as the median of the
// others of its group, and at least 10 ms more, and they wait for it. At most kMostLastSteps. nullopt as above.
std::optional<LastRank> judge_last_rank(const Run& run, double factor, std::size_t steps);

inline constexpr std::size_t kMostLastSteps = 60;

}  // namespace lockstep::observe
