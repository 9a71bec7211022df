// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <netinet/in.h>
#include <optional>
#include <poll.h>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <vector>

#include "base/deadline.h"
#include "base/unique_fd.h"

namespace lockstep {

// Whether one of `events` comes before the deadline; see poll(2).
bool wait_for(int fd, short events, const Deadline& deadline);

// An IPv4 or IPv6 address with a port.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  bool is_ipv6() const { return storage.ss_family == AF_INET6; }
  std::string text() const;  // the address without the port
  int port() const;
  bool is_loopback() const;
  SocketAddress with_port(int port) const;
};

// The address with this name in the abstract namespace of unix(7), so that no file can stay behind. Throws Error for a
// name that is too long.
SocketAddress abstract_address(std::string_view name);
// The process at the other end of a local socket; nullopt, with the reason in errno, if it is not known.
std::optional<ucred> peer_process(int socket);

// The result of getaddrinfo(3), which may block for long.
struct Resolution {
  std::vector<SocketAddress> addresses{};
  std::string error{};  // why there are none
};
Resolution resolve_now(const std::string& name, int port = 0);

// All addresses of this host: of both families if the kernel has IPv6.
SocketAddress any_address();

// The local address of a socket.
SocketAddress address_of(int socket);

// A connected or connecting socket that does not block. Empty on failure, with the reason in errno.
UniqueFd begin_connecting(const SocketAddress& address);
// 0, or the errno value with which connecting failed.
int connect_error(int socket);
// Waits until it is connected. Empty on failure, with the reason in errno.
UniqueFd connect_to(const SocketAddress& address, const Deadline& deadline);

struct Interface {
  std::string name{};
  bool up = false;
  bool loopback = false;
  std::vector<std::string> addresses{};
};
std::vector<Interface> network_interfaces();

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

// A TCP socket bound to `port` (0: any free one) on all addresses: IPv4 and IPv6 if the machine has it. Empty
// on failure, with the reason in errno.
struct BindOptions {
  bool only_ipv4 = false;
  std::optional<SocketAddress> address = {};  // the only one, instead of all
  bool reuse_address = true;  // else closed connections of an earlier server on this port make it fail
  int flags = 0;              // of socket(2)
};
UniqueFd bound_socket(std::uint16_t port, const BindOptions& options = {});

// The port to which a socket is bound.
std::uint16_t bound_port(int socket);

}  // namespace lockstep
