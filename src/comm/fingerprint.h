// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <lockstep/comm/c10d.h>
#include <lockstep/comm/call_record.h>

#include "comm/group_state.h"

namespace lockstep::comm {

// Before a collective: tells all ranks what this one is about to call, over the same backend, and throws
// DesyncError on all of them when they differ. Blocks until all have come. For debugging: it costs an
// all-gather a call.
void compare_calls(c10d::Backend& backend, const GroupState& group, const CallRecord& record);

}  // namespace lockstep::comm
