// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>

#include <lockstep/comm/work.h>

#include "comm/call.h"
#include "comm/group_state.h"

namespace lockstep::comm {

// Checks, numbers and records a call, and passes it to the group's backend. Throws the failure of the call as
// one of Lockstep's exceptions. By reference: a copy of fields that were just written stalls for 20 ns.
Work start(const std::shared_ptr<GroupState>& group, Call&& call);

// The same, and waits for the end. Returns the sender of a receive.
int run(const std::shared_ptr<GroupState>& group, Call&& call);

}  // namespace lockstep::comm
