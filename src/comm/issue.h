// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>

#include <lockstep/comm/work.h>

#include "comm/call.h"
#include "comm/group_state.h"

namespace lockstep::comm {

// Takes a call through the one path: checks, numbers and records it, and hands it to the group's backend.
// By reference: a copy right after the fields are written would wait for those writes.
// Throws the failure of the call as a member of Lockstep's error family.
Work start(const std::shared_ptr<GroupState>& group, Call&& call);

// The same, and waits for the end. Returns the sender of a receive.
int run(const std::shared_ptr<GroupState>& group, Call&& call);

}  // namespace lockstep::comm
