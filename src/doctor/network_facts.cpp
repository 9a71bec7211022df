// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cstring>
#include <ifaddrs.h>
#include <memory>
#include <net/if.h>
#include <poll.h>
#include <set>
#include <sys/socket.h>

#include <fmt/format.h>

#include <lockstep/base/env.h>
#include <lockstep/base/error.h>

#include "base/host.h"
#include "doctor/facts.h"
#include "doctor/sockets.h"

namespace lockstep::doctor {
namespace {

constexpr std::chrono::seconds kNetworkLimit{10};

std::string interface_address(const ifaddrs& entry) {
  if (entry.ifa_addr == nullptr) return "";
  const auto family = entry.ifa_addr->sa_family;
  if (family != AF_INET && family != AF_INET6) return "";
  SocketAddress address;
  address.length = static_cast<socklen_t>(family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
  std::memcpy(&address.storage, entry.ifa_addr, address.length);
  return address.text();
}

std::vector<Interface> read_interfaces() {
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

// What the host's name means, where that is an address of ours, else that of any interface.
std::string own_address(const Network& network) {
  std::string first;
  for (const auto& interface : network.interfaces) {
    if (!interface.up || interface.loopback) continue;
    for (const auto& address : interface.addresses) {
      if (std::ranges::find(network.resolved, address) != network.resolved.end()) return address;
      // A link-local one needs its interface besides.
      if (first.empty() && !address.starts_with("fe80:")) first = address;
    }
  }
  return first;
}

std::string try_connection(const std::string& address_text) {
  try {
    const Deadline deadline(kNetworkLimit);
    const auto listener = listen_at(resolve(address_text, deadline).at(0));
    const auto connection = connect_to(address_of(listener), deadline);
    return wait_for(listener, POLLIN, deadline) ? "" : "the connection never arrived";
  } catch (const Error& error) {
    return error.what();
  }
}

std::string try_listening(std::optional<int> port) {
  if (!port) return "";
  try {
    (void)listen_at(any_address().with_port(*port));
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

std::optional<int> master_port() {
  try {
    const auto port = Env().get_int("MASTER_PORT");
    return port && *port > 0 && *port <= 65535 ? std::optional(static_cast<int>(*port)) : std::nullopt;
  } catch (const ArgumentError&) {
    return std::nullopt;  // check_master_port() tells of it
  }
}

}  // namespace

Network read_network() {
  Network network{.interfaces = read_interfaces(), .host_name = host_name()};
  try {
    std::set<std::string> addresses;
    for (const auto& address : resolve(network.host_name, Deadline(kNetworkLimit))) {
      addresses.insert(address.text());
    }
    network.resolved.assign(addresses.begin(), addresses.end());
  } catch (const Error& error) {
    network.resolve_error = error.what();
  }
  return network;
}

Ports try_ports(const Network& network, std::optional<int> port) {
  Ports ports{.loopback_error = try_connection("127.0.0.1"),
              .own_address = own_address(network),
              .port = port,
              .port_error = try_listening(port),
              .master_port = master_port()};
  ports.master_port_error = try_listening(ports.master_port);
  if (!ports.own_address.empty()) ports.own_error = try_connection(ports.own_address);
  return ports;
}

}  // namespace lockstep::doctor
