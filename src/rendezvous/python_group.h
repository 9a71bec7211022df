// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include "backends/registry.h"

namespace lockstep::rendezvous {

// Throws ArgumentError unless C++ and Python ranks can share the backend. `what` begins the message:
// "new_group: a run with Python ranks".
void check_backend_with_python(const backends::BackendSpec& backend, const std::string& what);

// Connects a group whose other ranks may run torch.distributed: over gloo with PyTorch's keys only; over shm
// and hierarchical as the Python package does, which calls this too, and whose groups PyTorch can split.
// `request` has PyTorch's store of the group for the devices of the backend, rank, size, timeout and name.
backends::BackendHandle create_with_python(const std::string& backend, backends::BackendRequest request);

}  // namespace lockstep::rendezvous
