// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include "backends/registry.h"

namespace lockstep::backends {

// This host's address on the way to `host`, in digits; throws RendezvousError naming the interfaces there are
// when the name does not resolve or nothing routes to it.
std::string local_address_towards(const std::string& host);

// The address on which the other ranks of `request` can reach this one. It is the one that routes to the
// master, except for ranks on the master's own host when that route is the loopback and other hosts take
// part: these take the route to a rank elsewhere.
std::string shared_route(const BackendRequest& request);

// The names in a comma-separated list, as in GLOO_SOCKET_IFNAME; throws RendezvousError when this host does
// not have one of these interfaces.
std::vector<std::string> interfaces_named(const std::string& list);

// "lo (127.0.0.1), eth0 (10.0.0.3)": the interfaces that are up, with addresses.
std::string describe_interfaces();

}  // namespace lockstep::backends
