// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>

#include "node/node_group.h"

namespace lockstep::comm {

// Note [Dead, refused or late?]
//
// A wait for other ranks can fail for several reasons at once. All waits report the first one of:
//
//   1. another rank refuses the call (DesyncError). It knows the cause, and leaves, so it is soon gone too.
//   2. another rank is dead (PeerLost)
//   3. the limit has passed (TimeoutError), which says nothing about the cause
//
// A wait looks for 1 and 2 at least once a period, and once more before it reports 3. shm's core does not
// know LibTorch; Engine::look_around() has the same order.

inline constexpr std::chrono::milliseconds kPeerCheckPeriod{20};

// Throws for 1 and 2. nullptr: ranks of several hosts, of which nothing is known.
void check_peers(const node::NodeGroup* others);

}  // namespace lockstep::comm
