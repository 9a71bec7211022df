// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/base/world.h>
#include <lockstep/comm/c10d.h>

#include "rendezvous/host_table.h"
#include "rendezvous/placement.h"

namespace lockstep::rendezvous {

// In a run's store: how many of its ranks have left. There only once the run is ending.
inline constexpr const char* kLeftKey = "left";

// Says in the store that this rank is there and waits for all the others; throws RendezvousError naming
// those that have not arrived by the deadline. Three requests to the store, however many ranks there are; the
// last rank to arrive makes three more, for all.
void await_all(c10d::Store& store, int rank, int world_size, const Deadline& deadline);

// As if all ranks had arrived on this host, and left again.
void pretend_all(c10d::Store& store, int world_size);

// Where the ranks are. After await_all(). One request.
HostTable read_hosts(c10d::Store& store);

// The numbers of this rank, the local ones counted from where each rank says it runs when the launcher did
// not give them.
World locate(const HostTable& hosts, const Placement& placement);

}  // namespace lockstep::rendezvous
