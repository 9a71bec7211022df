// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <optional>
#include <source_location>

#include <lockstep/comm/work.h>

#include "comm/direct_calls.h"
#include "comm/group_state.h"

namespace lockstep::comm {

// A blocking call by the backend's direct way. Recorded and failing as all calls. False where there is no
// such way for it: nothing has been done.
bool call_directly(GroupState& group, const DirectCall& call, std::source_location where);

// The same for a send that does not wait. Most often the Work is done when it is returned.
std::optional<Work> send_directly(const std::shared_ptr<GroupState>& group, const DirectCall& call,
                                  std::source_location where);

}  // namespace lockstep::comm
