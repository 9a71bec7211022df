// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include "comm/call.h"
#include "comm/group_state.h"

namespace lockstep::comm {

// The collective fingerprint: kind, dtype and, if the kind requires equal shapes, shape and memory layout in
// one number. Ranks with different fingerprints make different calls. 0 for messages.
std::uint64_t fingerprint(const Call& call);

// Before a collective: exchanges descriptions of the call over the backend and throws DesyncError on all
// ranks when they differ. Blocks until all ranks have arrived. For debugging: it costs one all-gather per
// call.
void compare_calls(c10d::Backend& backend, const GroupState& group, const CallRecord& record);

}  // namespace lockstep::comm
