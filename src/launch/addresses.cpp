// SPDX-License-Identifier: BSD-3-Clause
#include "launch/addresses.h"

#include <cerrno>
#include <cstdint>
#include <netinet/in.h>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/unique_fd.h"

namespace lockstep::launch {
namespace {

// bind() succeeds only for an address of this machine.
bool can_bind(const addrinfo& address) {
  const UniqueFd socket(::socket(address.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket) return false;
  sockaddr_storage any_port{};
  std::copy_n(reinterpret_cast<const char*>(address.ai_addr), address.ai_addrlen,
              reinterpret_cast<char*>(&any_port));
  if (address.ai_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&any_port)->sin6_port = 0;
  } else {
    reinterpret_cast<sockaddr_in*>(&any_port)->sin_port = 0;
  }
  return ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&any_port), address.ai_addrlen) == 0;
}

}  // namespace

AddressList resolve(const Endpoint& endpoint) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int code =
      ::getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(), &hints, &found);
  if (code != 0) {
    throw UnknownHost(fmt::format("host {} cannot be resolved: {}", endpoint.host, ::gai_strerror(code)));
  }
  return {found, &::freeaddrinfo};
}

bool is_local(const Endpoint& endpoint) {
  try {
    const auto addresses = resolve(endpoint);
    for (const auto* address = addresses.get(); address != nullptr; address = address->ai_next) {
      if (can_bind(*address)) return true;
    }
  } catch (const UnknownHost&) {
    return false;
  }
  return false;
}

std::string own_address(int socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  char text[NI_MAXHOST] = "";
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, text, sizeof(text), nullptr, 0,
                    NI_NUMERICHOST) != 0) {
    throw LaunchError("the address of this node is unknown; set local-addr");
  }
  const std::string plain = text;
  // IPv4-mapped.
  constexpr std::string_view mapped = "::ffff:";
  return plain.starts_with(mapped) ? plain.substr(mapped.size()) : plain;
}

std::string to_text(const Endpoint& endpoint) {
  const bool v6 = endpoint.host.find(':') != std::string::npos;
  return v6 ? fmt::format("[{}]:{}", endpoint.host, endpoint.port)
            : fmt::format("{}:{}", endpoint.host, endpoint.port);
}

}  // namespace lockstep::launch
