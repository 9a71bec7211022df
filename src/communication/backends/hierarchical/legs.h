// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <compare>
#include <functional>
#include <memory>
#include <string>
#include <sys/types.h>
#include <vector>

#include "backends/hierarchical/host_layout.h"
#include "backends/registry.h"
#include "comm/group_state.h"

namespace lockstep::backends {

// A host on the network.
struct PeerHost {
  std::string name;                    // gethostname(2)
  std::vector<std::string> addresses;  // numeric, of its interfaces except the loopback

  static PeerHost own();
  // One line each. For other ranks.
  std::string text() const;
  static PeerHost from_text(const std::string& text);
};

// A TCP connection of this process. Descriptors are used again, inodes of living sockets are not.
struct TcpConnection {
  int file = -1;
  ino_t inode = 0;

  auto operator<=>(const TcpConnection&) const = default;
};

// All of this process, in ascending order.
std::vector<TcpConnection> tcp_connections();

// The other hosts of the lanes, and this rank's connections in them.
struct Peers {
  std::vector<PeerHost> hosts = {};
  std::vector<TcpConnection> connections = {};
};

// What the kernel knows about the connections to each host, one sentence each: whether packets are
// acknowledged, and for how long nothing has come. Empty without connections. Sends nothing.
std::string describe_connections(const Peers& peers);

using Leg = std::shared_ptr<comm::GroupState>;

// The groups that `hierarchical` is made of.
struct Legs {
  std::string network = {};               // network_between_hosts()
  Leg host = {};                          // shm
  std::vector<Leg> lanes = {};            // of this rank, in ascending order
  BackendHandle flat = {};                // all ranks
  std::function<Leg()> connect_all = {};  // another one of all ranks, when all ranks call it
  Peers peers = {};                       // over TCP; for errors
};

// All ranks call it. Throws RendezvousError if ranks cannot be connected, or if they name different networks.
Legs connect_legs(const BackendRequest& request, const HostLayout& layout);

}  // namespace lockstep::backends
