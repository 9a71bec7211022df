// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>

#include <lockstep/backends/registry.h>

#include "comm/host_group.h"

namespace lockstep::backends {

// The ranks of a group that all run on one host meet, through the group's store.
std::shared_ptr<comm::HostGroup> meet_on_host(const BackendRequest& request, comm::HostGroup::Part part);

}  // namespace lockstep::backends
