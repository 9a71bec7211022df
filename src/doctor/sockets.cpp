// SPDX-License-Identifier: BSD-3-Clause
#include "doctor/sockets.h"

#include <arpa/inet.h>
#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <future>
#include <memory>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <thread>

#include <fmt/format.h>

#include <lockstep/base/error.h>

namespace lockstep::doctor {
namespace {

const sockaddr* generic(const SocketAddress& address) {
  return reinterpret_cast<const sockaddr*>(&address.storage);
}

const sockaddr_in& ipv4(const SocketAddress& address) {
  return reinterpret_cast<const sockaddr_in&>(address.storage);
}

const sockaddr_in6& ipv6(const SocketAddress& address) {
  return reinterpret_cast<const sockaddr_in6&>(address.storage);
}

bool is_ipv6(const SocketAddress& address) { return address.storage.ss_family == AF_INET6; }

struct Resolution {
  std::vector<SocketAddress> addresses{};
  std::string error{};
};

Resolution resolve_now(const std::string& name) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int code = ::getaddrinfo(name.c_str(), nullptr, &hints, &found); code != 0) {
    return {.error = ::gai_strerror(code)};
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  Resolution result;
  for (const auto* entry = found; entry != nullptr; entry = entry->ai_next) {
    SocketAddress address{.length = entry->ai_addrlen};
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    result.addresses.push_back(address);
  }
  return result;
}

UniqueFd tcp_socket(const SocketAddress& address) {
  UniqueFd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) throw Error("socket: " + errno_text(errno));
  return fd;
}

}  // namespace

std::string SocketAddress::text() const {
  std::array<char, INET6_ADDRSTRLEN> buffer{};
  const void* bytes = is_ipv6(*this) ? static_cast<const void*>(&ipv6(*this).sin6_addr)
                                     : static_cast<const void*>(&ipv4(*this).sin_addr);
  ::inet_ntop(storage.ss_family, bytes, buffer.data(), buffer.size());
  return buffer.data();
}

int SocketAddress::port() const {
  return ntohs(is_ipv6(*this) ? ipv6(*this).sin6_port : ipv4(*this).sin_port);
}

bool SocketAddress::is_loopback() const {
  if (is_ipv6(*this)) return IN6_IS_ADDR_LOOPBACK(&ipv6(*this).sin6_addr) != 0;
  return (ntohl(ipv4(*this).sin_addr.s_addr) >> 24U) == 127;
}

SocketAddress SocketAddress::with_port(int port) const {
  SocketAddress copy = *this;
  const auto wire = htons(static_cast<std::uint16_t>(port));
  if (is_ipv6(copy)) {
    reinterpret_cast<sockaddr_in6&>(copy.storage).sin6_port = wire;
  } else {
    reinterpret_cast<sockaddr_in&>(copy.storage).sin_port = wire;
  }
  return copy;
}

std::vector<SocketAddress> resolve(const std::string& name, const Deadline& deadline) {
  // Left behind when it takes too long: there is no way to stop it.
  auto task = std::make_shared<std::packaged_task<Resolution()>>([name] { return resolve_now(name); });
  auto answer = task->get_future();
  std::thread([task] { (*task)(); }).detach();
  if (answer.wait_for(deadline.remaining()) != std::future_status::ready) {
    throw Error(
        fmt::format("{} cannot be resolved: no answer within {} ms", name, deadline.timeout().count()));
  }
  auto result = answer.get();
  if (!result.error.empty()) throw Error(fmt::format("{} cannot be resolved: {}", name, result.error));
  return std::move(result.addresses);
}

SocketAddress any_address() {
  SocketAddress address;
  const UniqueFd ipv6_works(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  address.storage.ss_family = ipv6_works ? AF_INET6 : AF_INET;
  address.length = ipv6_works ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  return address;
}

UniqueFd listen_at(const SocketAddress& address) {
  auto fd = tcp_socket(address);
  const int on = 1;
  const int off = 0;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (is_ipv6(address)) ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  if (::bind(fd.get(), generic(address), address.length) != 0 || ::listen(fd.get(), SOMAXCONN) != 0) {
    throw Error(
        fmt::format("listening on {} port {}: {}", address.text(), address.port(), errno_text(errno)));
  }
  return fd;
}

SocketAddress address_of(const UniqueFd& socket) {
  SocketAddress address{.length = sizeof(sockaddr_storage)};
  ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address.storage), &address.length);
  return address;
}

bool wait_for(const UniqueFd& fd, short events, const Deadline& deadline) {
  pollfd event{.fd = fd.get(), .events = events, .revents = 0};
  int ready = 0;
  do {
    ready = ::poll(&event, 1, static_cast<int>(deadline.remaining().count()));
  } while (ready < 0 && errno == EINTR);
  return ready > 0;
}

UniqueFd connect_to(const SocketAddress& address, const Deadline& deadline) {
  auto fd = tcp_socket(address);
  int code = ::connect(fd.get(), generic(address), address.length) == 0 ? 0 : errno;
  if (code == EINPROGRESS) {
    socklen_t length = sizeof(code);
    if (!wait_for(fd, POLLOUT, deadline)) {
      code = ETIMEDOUT;
    } else {
      ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &code, &length);
    }
  }
  if (code == 0) return fd;
  throw Error(fmt::format("connecting to {} port {}: {}", address.text(), address.port(), errno_text(code)));
}

}  // namespace lockstep::doctor
