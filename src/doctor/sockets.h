// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <netinet/in.h>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/unique_fd.h"

namespace lockstep::doctor {

// An IPv4 or IPv6 address with a port.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  std::string text() const;  // the address without the port
  int port() const;
  bool is_loopback() const;
  SocketAddress with_port(int port) const;
};

// The addresses of a host name or an address in text. Waits no longer than the deadline, which the resolver
// itself does not know. Throws Error.
std::vector<SocketAddress> resolve(const std::string& name, const Deadline& deadline);

// Every address, of both families where the kernel has them.
SocketAddress any_address();

// A listening socket that does not block; port 0: a free one. Throws Error.
UniqueFd listen_at(const SocketAddress& address);
SocketAddress address_of(const UniqueFd& socket);

// A connected socket that does not block. Throws Error.
UniqueFd connect_to(const SocketAddress& address, const Deadline& deadline);

// Whether `events` came before the deadline.
bool wait_for(const UniqueFd& fd, short events, const Deadline& deadline);

}  // namespace lockstep::doctor
