// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include "backends/registry.h"

namespace lockstep::backends {

// Device dispatch: one backend of several that create_backend() made for these ranks, each for the devices of
// its traits; the first is the CPU's. A call goes to the backend of its tensors, a barrier to the CPU's.
// Threads: as the parts.
BackendHandle make_device_dispatch(std::vector<BackendHandle> parts);

}  // namespace lockstep::backends
