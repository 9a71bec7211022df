// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include "backends/registry.h"

namespace lockstep::rendezvous {

// Connects a group whose other ranks may run torch.distributed: over gloo with PyTorch's keys only; over shm
// and hierarchical as the Python package does, which calls this too. `request` has PyTorch's store of the
// group for the devices of the backend, rank, size, timeout and name.
backends::BackendHandle create_with_python(const std::string& backend, backends::BackendRequest request);

}  // namespace lockstep::rendezvous
