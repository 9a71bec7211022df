// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <exception>

#include "comm/group_state.h"

namespace lockstep::comm {

// Throws the failure of one call again as the member of our error family that fits: TimeoutError, PeerLost,
// DesyncError, ArgumentError or Error. The message says who did which call, what happened, and, where all
// ranks run on one host, what each other rank is doing.
[[noreturn]] void rethrow_as_ours(const std::exception_ptr& cause, const GroupState& group,
                                  const CallRecord& call);

// Throws DesyncError with the other ranks' reasons when they refuse the call.
void throw_if_refused(const GroupState& group, const CallRecord& call);

}  // namespace lockstep::comm
