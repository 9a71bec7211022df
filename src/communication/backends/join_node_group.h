// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>

#include "backends/registry.h"
#include "node/node_group.h"

namespace lockstep::backends {

// Connects the ranks of a group that all run on one host, through the group's store.
std::shared_ptr<node::NodeGroup> join_node_group(const BackendRequest& request, node::NodeGroup::Part part);

}  // namespace lockstep::backends
