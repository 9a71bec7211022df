// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <string>

#include "backends/registry.h"

namespace lockstep::backends {

// Note [Groups that are formed again]
//
// reconfigure() connects a group anew, under keys of its own in the group's store, with new shared memory for
// calls and the flight recorder. So nothing of the group before can be mistaken for something of this one: a
// rank that was left out and runs finds the old memory, whose other users have left. Numbers of calls and
// fingerprints begin again. Only the heap of a rank stays, so that its tensors stay where they are and stay
// registered. The kernel frees the memory of the group before when its last user has unmapped it; that of a
// dead rank too.
//
// A rank that was left out while it was in a call over registered memory, and is alive, may still write
// there: to be sure of the tensors, end its process first.

using Factory = std::function<BackendHandle(const BackendRequest&)>;

// Whether a group that has this backend alone can be formed again.
bool can_be_formed_again(const std::string& backend, const BackendRequest& request);

// Connects the ranks as `connect` does; with enable_reconfigure returns a ReconfigurableBackend without
// members. Adds the membership where the group can be formed again.
BackendHandle create_member(const std::string& name, const Factory& connect, const BackendRequest& request);

}  // namespace lockstep::backends
