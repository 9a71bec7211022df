// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <source_location>

#include <ATen/core/Tensor.h>

#include <lockstep/comm/reduce_op.h>

#include "comm/group_state.h"

namespace lockstep::comm {

// The blocking calls by the backend's direct way. Recorded and failing as all calls. False where there is no
// such way: nothing has been done.
bool all_reduce_directly(GroupState& group, const at::Tensor& tensor, ReduceOp op,
                         std::source_location where);
bool barrier_directly(GroupState& group, std::source_location where);

}  // namespace lockstep::comm
