// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <lockstep/base/world.h>
#include <lockstep/comm/backend.h>

#include "base/deadline.h"
#include "rendezvous/host_map.h"
#include "rendezvous/rank_info.h"

namespace lockstep::rendezvous {

// In a run's store: the number of ranks that have left. Exists only when the run is ending.
inline constexpr const char* kLeftKey = "left";

// Announces this rank in the store and waits for all others. Throws RendezvousError naming the ranks that
// have not arrived by the deadline. Three requests per rank; the last rank makes three more. PyTorch:
// _store_based_barrier.
void store_barrier(c10d::Store& store, int rank, int world_size, const Deadline& deadline);

// Leaves the store as if all ranks had arrived on this host, and left.
void simulate_barrier(c10d::Store& store, int world_size);

// The hosts of the ranks. After store_barrier(). One request.
HostMap read_host_map(c10d::Store& store);

// The numbers of this rank. Local numbers that the launcher has not set are computed from the hosts of the
// ranks.
World world_of(const HostMap& hosts, const RankInfo& rank_info);

}  // namespace lockstep::rendezvous
