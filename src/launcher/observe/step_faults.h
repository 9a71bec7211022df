// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>

#include "observe/verdict.h"

namespace lockstep::observe {

// A rank whose computation (slow) or whose wait for data (starved) makes each step of the others longer, or
// communication that takes longer than before (slow_link): judged by the last steps of ranks that make calls in one
// group. nullopt if there is none, if the last step is long ago, and for pipelines, whose ranks compute for different
// times.
std::optional<Verdict> judge_steps(const Run& run);

}  // namespace lockstep::observe
