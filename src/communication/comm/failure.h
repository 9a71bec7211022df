// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <exception>

#include "comm/group_state.h"

namespace lockstep::comm {

// Rethrows the failure of one call as the matching type: TimeoutError, PeerLost, DesyncError, ArgumentError
// or Error; as DesyncError with their reasons if other ranks refuse the call, see Note [Dead, refused or
// late?]. The message names the rank, the call and the event and, if all ranks run on one host, what each
// other rank is doing.
[[noreturn]] void rethrow_as_ours(const std::exception_ptr& cause, const GroupState& group,
                                  const CallRecord& call);

}  // namespace lockstep::comm
