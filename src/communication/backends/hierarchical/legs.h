// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "backends/hierarchical/host_collectives.h"
#include "backends/hierarchical/host_layout.h"
#include "backends/hierarchical/peer_host.h"
#include "backends/registry.h"

namespace lockstep::backends {

// The groups that `hierarchical` is made of.
struct Legs {
  std::string network = {};                                // network_between_hosts()
  HostCollectives::Leg host = {};                          // shm
  std::vector<HostCollectives::Leg> lanes = {};            // of this rank, in ascending order
  BackendHandle flat = {};                                 // all ranks
  std::function<HostCollectives::Leg()> connect_all = {};  // another one of all ranks, when all ranks call it
  Peers peers = {};                                        // over TCP; for errors
};

// All ranks call it. Throws RendezvousError if ranks cannot be connected, or if they name different networks.
Legs connect_legs(const BackendRequest& request, const HostLayout& layout);

}  // namespace lockstep::backends
