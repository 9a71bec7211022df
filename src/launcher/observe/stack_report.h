// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include "observe/find_runs.h"

namespace lockstep::observe {

// The stacks of all threads of a run's ranks, equal ones once, with the call that each rank is in. Throws as stacks_of().
std::string stacks_text(const ObservedRun& run);

}  // namespace lockstep::observe
