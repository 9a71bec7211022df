// SPDX-License-Identifier: BSD-3-Clause
#include "base/sockets.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <ifaddrs.h>
#include <memory>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

template <typename Sockaddr, typename Address>
auto& as(Address& address) {
  return reinterpret_cast<Sockaddr&>(address.storage);
}

SocketAddress copy_of(const sockaddr& source, socklen_t length) {
  SocketAddress address{.length = length};
  std::memcpy(&address.storage, &source, length);
  return address;
}

SocketAddress any_of(sa_family_t family) {
  SocketAddress address;
  address.length = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  address.storage.ss_family = family;
  return address;
}

void allow_both_families(int fd, sa_family_t family) {
  const int off = 0;
  if (family == AF_INET6) ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
}

// Without the interface of a link-local address. Empty for other families.
std::string interface_address(const ifaddrs& entry) {
  if (entry.ifa_addr == nullptr) return "";
  const auto family = entry.ifa_addr->sa_family;
  if (family != AF_INET && family != AF_INET6) return "";
  const auto text = copy_of(*entry.ifa_addr, any_of(family).length).text();
  return text.substr(0, text.find('%'));
}

[[noreturn]] void refuse_port(const char* step) {
  throw LaunchError(std::string("no free TCP port could be reserved: ") + step + ": " + errno_text(errno));
}

void allow_reuse(int fd) {
  const int on = 1;
  if (::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0) refuse_port("SO_REUSEADDR");
}

}  // namespace

bool wait_for(int fd, short events, const Deadline& deadline) {
  pollfd event{.fd = fd, .events = events, .revents = 0};
  do {
    const auto limit = std::min<std::chrono::milliseconds>(deadline.remaining(), std::chrono::hours(1));
    const int ready = ::poll(&event, 1, static_cast<int>(limit.count()));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  } while (!deadline.expired());
  return false;
}

std::string SocketAddress::text() const {
  std::array<char, NI_MAXHOST> buffer{};
  ::getnameinfo(get(), length, buffer.data(), buffer.size(), nullptr, 0, NI_NUMERICHOST);
  return buffer.data();
}

int SocketAddress::port() const {
  return ntohs(is_ipv6() ? as<const sockaddr_in6>(*this).sin6_port : as<const sockaddr_in>(*this).sin_port);
}

bool SocketAddress::is_loopback() const {
  if (is_ipv6()) return IN6_IS_ADDR_LOOPBACK(&as<const sockaddr_in6>(*this).sin6_addr) != 0;
  return (ntohl(as<const sockaddr_in>(*this).sin_addr.s_addr) >> 24U) == 127;
}

SocketAddress SocketAddress::with_port(int port) const {
  SocketAddress copy = *this;
  auto& place = is_ipv6() ? as<sockaddr_in6>(copy).sin6_port : as<sockaddr_in>(copy).sin_port;
  place = htons(static_cast<std::uint16_t>(port));
  return copy;
}

SocketAddress abstract_address(std::string_view name) {
  SocketAddress address;
  auto& local = as<sockaddr_un>(address);
  if (name.size() + 1 > sizeof(local.sun_path)) throw Error("local socket: its name is too long");
  local.sun_family = AF_UNIX;
  std::memcpy(local.sun_path + 1, name.data(), name.size());
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

std::optional<ucred> peer_process(int socket) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return std::nullopt;
  return peer;
}

Resolution resolve_now(const std::string& name, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int code = ::getaddrinfo(name.c_str(), nullptr, &hints, &found); code != 0) {
    return {.error = ::gai_strerror(code)};
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  Resolution result;
  for (const auto* entry = found; entry != nullptr; entry = entry->ai_next) {
    result.addresses.push_back(copy_of(*entry->ai_addr, entry->ai_addrlen).with_port(port));
  }
  return result;
}

SocketAddress any_address() {
  const UniqueFd ipv6_works(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return any_of(ipv6_works ? AF_INET6 : AF_INET);
}

SocketAddress address_of(int socket) {
  SocketAddress address{.length = sizeof(sockaddr_storage)};
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address.storage), &address.length) != 0) return {};
  return address;
}

UniqueFd begin_connecting(const SocketAddress& address) {
  UniqueFd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd && (::connect(fd.get(), address.get(), address.length) == 0 || errno == EINPROGRESS)) return fd;
  const int code = errno;
  fd.reset();
  errno = code;
  return fd;
}

int connect_error(int socket) {
  int code = 0;
  socklen_t length = sizeof(code);
  return ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &code, &length) == 0 ? code : errno;
}

UniqueFd connect_to(const SocketAddress& address, const Deadline& deadline) {
  auto fd = begin_connecting(address);
  if (!fd) return fd;
  const int code = wait_for(fd.get(), POLLOUT, deadline) ? connect_error(fd.get()) : ETIMEDOUT;
  if (code == 0) return fd;
  fd.reset();
  errno = code;
  return fd;
}

std::vector<Interface> network_interfaces() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(first, &::freeifaddrs);
  std::vector<Interface> interfaces;
  for (const auto* entry = first; entry != nullptr; entry = entry->ifa_next) {
    auto known = std::ranges::find(interfaces, entry->ifa_name, &Interface::name);
    if (known == interfaces.end()) {
      interfaces.push_back({.name = entry->ifa_name,
                            .up = (entry->ifa_flags & IFF_UP) != 0 && (entry->ifa_flags & IFF_RUNNING) != 0,
                            .loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0});
      known = interfaces.end() - 1;
    }
    if (auto address = interface_address(*entry); !address.empty()) known->addresses.push_back(address);
  }
  return interfaces;
}

UniqueFd bound_socket(std::uint16_t port, const BindOptions& options) {
  for (const sa_family_t family : {AF_INET6, AF_INET}) {
    if (options.only_ipv4 && family != AF_INET) continue;
    if (options.address && options.address->storage.ss_family != family) continue;
    UniqueFd fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | options.flags, 0));
    if (!fd) continue;
    if (options.reuse_address) allow_reuse(fd.get());
    allow_both_families(fd.get(), family);
    const auto address = options.address.value_or(any_of(family)).with_port(port);
    if (::bind(fd.get(), address.get(), address.length) == 0) return fd;
    if (errno == EADDRINUSE || errno == EACCES) break;
  }
  return {};
}

std::uint16_t bound_port(int socket) {
  const auto address = address_of(socket);
  if (address.length == 0) refuse_port("getsockname");
  return static_cast<std::uint16_t>(address.port());
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
