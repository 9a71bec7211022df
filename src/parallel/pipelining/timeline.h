// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include <lockstep/pipelining/schedule.h>

namespace lockstep::pipelining {

// The actions of `ranks` ranks, from time 0.
Timeline summarize(std::vector<TimedAction> actions, int ranks);

}  // namespace lockstep::pipelining
