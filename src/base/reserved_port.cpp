// SPDX-License-Identifier: BSD-3-Clause
#include "base/reserved_port.h"

#include <cerrno>
#include <netinet/in.h>
#include <sys/socket.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

[[noreturn]] void refuse_port(const char* step) {
  throw LaunchError(std::string("no free TCP port could be reserved: ") + step + ": " + errno_text(errno));
}

void allow_reuse(int fd) {
  const int on = 1;
  if (::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0) refuse_port("SO_REUSEADDR");
}

bool bind_to(int fd, std::uint16_t port, sa_family_t family) {
  if (family == AF_INET6) {
    const int off = 0;
    ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    sockaddr_in6 any{};
    any.sin6_family = AF_INET6;
    any.sin6_port = htons(port);
    return ::bind(fd, reinterpret_cast<const sockaddr*>(&any), sizeof(any)) == 0;
  }
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_port = htons(port);
  return ::bind(fd, reinterpret_cast<const sockaddr*>(&any), sizeof(any)) == 0;
}

}  // namespace

UniqueFd bound_socket(std::uint16_t port, const BindOptions& options) {
  for (const sa_family_t family : {AF_INET6, AF_INET}) {
    if (options.only_ipv4 && family != AF_INET) continue;
    UniqueFd fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | options.flags, 0));
    if (!fd) continue;
    if (options.reuse_address) allow_reuse(fd.get());
    if (bind_to(fd.get(), port, family)) return fd;
    if (errno == EADDRINUSE || errno == EACCES) break;
  }
  return {};
}

std::uint16_t bound_port(int socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length) != 0) refuse_port("getsockname");
  if (address.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

ReservedPort::ReservedPort() : socket_(bound_socket(0, {.reuse_address = false})) {
  if (!socket_) refuse_port("bind");
  port_ = bound_port(socket_.get());
  // Only now: with reuse allowed, bind() to any port could return one that another launch has reserved.
  allow_reuse(socket_.get());
}

ReservedPort::ReservedPort(std::uint16_t port) : socket_(bound_socket(port)), port_(port) {
  if (!socket_) {
    throw LaunchError("TCP port " + std::to_string(port) +
                      " cannot be used on this machine: " + errno_text(errno));
  }
}

}  // namespace lockstep
