// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "backends/registry.h"

namespace lockstep::backends {

// c10d's ProcessGroupGloo over TCP, on the interface that routes to the master address (or the ones that
// GLOO_SOCKET_IFNAME names, as in PyTorch).
BackendHandle create_gloo(const BackendRequest& request);

}  // namespace lockstep::backends
