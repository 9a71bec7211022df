// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <compare>
#include <string>
#include <sys/types.h>
#include <vector>

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

}  // namespace lockstep::backends
