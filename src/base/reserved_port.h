// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include "base/unique_fd.h"

namespace lockstep {

// Holds a free TCP port for a server that another process will start there.
//
// The port is bound, not listened on, with address reuse allowed afterwards: a server that sets
// SO_REUSEADDR (c10d's TCPStore does) can bind and listen on it, while the kernel does not
// assign it to a process that asks for any free port. So launches can start at the same time without
// conflicts.
class ReservedPort {
 public:
  // Throws LaunchError when no port is free.
  ReservedPort();
  // Holds this port. Throws LaunchError naming it when another program listens there or this user may not use
  // it.
  explicit ReservedPort(std::uint16_t port);

  std::uint16_t port() const { return port_; }

 private:
  UniqueFd socket_;
  std::uint16_t port_ = 0;
};

// A TCP socket bound to `port` (0: any free one) on all addresses; IPv4 and IPv6 if the machine has it. Empty
// on failure, with the reason in errno.
struct BindOptions {
  bool only_ipv4 = false;
  bool reuse_address = true;  // else closed connections of an earlier server on this port make it fail
  int flags = 0;              // of socket(2)
};
UniqueFd bound_socket(std::uint16_t port, const BindOptions& options = {});

// The port to which a socket is bound.
std::uint16_t bound_port(int socket);

}  // namespace lockstep
