// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include "comm/call.h"
#include "comm/group_state.h"

namespace lockstep::comm {

// What must be equal on all ranks that make one collective, in one number. Ranks with different fingerprints
// make different calls. 0 for messages.
std::uint64_t fingerprint(const Call& call);

// Before a collective: exchanges the signatures of the call over the backend, and in kinds with uneven shapes
// the bytes for each pair of ranks. Throws DesyncError on all ranks when they differ, which says in what.
// Blocks until all ranks have arrived. For debugging: it costs one all-gather per call.
void compare_calls(c10d::Backend& backend, const GroupState& group, const Call& call,
                   const CallRecord& record);

}  // namespace lockstep::comm
