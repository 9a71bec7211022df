// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>

#include "observe/verdict.h"

namespace lockstep::observe {

// Ranks whose memory is larger in each of their last five samples or more, has grown by a quarter and by 256 MiB over
// them, and not by half of that at once. The first ten steps do not count.
std::optional<Verdict> judge_memory(const Run& run);

}  // namespace lockstep::observe
