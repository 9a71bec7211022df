// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include "backends/registry.h"

namespace lockstep::backends {

// c10d's ProcessGroupGloo over TCP, on the interface that routes to the master address (or the ones that
// GLOO_SOCKET_IFNAME names, as in PyTorch).
BackendHandle create_gloo(const BackendRequest& request);

// This host's numeric address on the route to `host`. Throws RendezvousError naming the interfaces if the
// name does not resolve or there is no route.
std::string local_address_towards(const std::string& host);

// The address at which the other ranks of `request` can reach this one. It is the one on the route to the
// master. Exception: if that route is the loopback and there are other hosts, ranks on the master's host use
// the route to a rank of another host.
std::string shared_route(const BackendRequest& request);

// The names in a comma-separated list, as in GLOO_SOCKET_IFNAME; throws RendezvousError if this host lacks
// one of these interfaces.
std::vector<std::string> interfaces_named(const std::string& list);

// "lo (127.0.0.1), eth0 (10.0.0.3)": the interfaces that are up, with addresses.
std::string describe_interfaces();

}  // namespace lockstep::backends
