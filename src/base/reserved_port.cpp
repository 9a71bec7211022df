// SPDX-License-Identifier: BSD-3-Clause
#include <lockstep/base/reserved_port.h>

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

[[noreturn]] void fail(const char* step) {
  throw LaunchError(std::string("no free TCP port could be reserved: ") + step + ": " + errno_text(errno));
}

// Both families at once where the machine has IPv6, as c10d's TCPStore binds too.
UniqueFd bound_socket() {
  UniqueFd fd(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (fd) {
    const int off = 0;
    ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    sockaddr_in6 any{};
    any.sin6_family = AF_INET6;
    if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&any), sizeof(any)) == 0) return fd;
  }
  fd.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) fail("socket");
  sockaddr_in any{};
  any.sin_family = AF_INET;
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&any), sizeof(any)) != 0) fail("bind");
  return fd;
}

std::uint16_t bound_port(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) fail("getsockname");
  if (address.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

}  // namespace

ReservedPort::ReservedPort() : socket_(bound_socket()), port_(bound_port(socket_.get())) {
  // Only now: a bind to "any port" that allowed reuse could be given one that another launch reserved.
  const int on = 1;
  if (::setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0) fail("SO_REUSEADDR");
}

}  // namespace lockstep
