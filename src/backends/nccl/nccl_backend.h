// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "backends/registry.h"

namespace lockstep::backends {

// c10d's ProcessGroupNCCL. The group's StreamWatch handles failures.
BackendHandle create_nccl(const BackendRequest& request);

}  // namespace lockstep::backends
