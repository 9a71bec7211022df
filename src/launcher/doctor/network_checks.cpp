// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/text.h"
#include "doctor/checks.h"

namespace lockstep::doctor {
namespace {

constexpr const char* kFirewall =
    "look at the firewall (iptables -L, nft list ruleset) and at the container's network";

std::vector<std::string> names_in(const std::string& list) {
  auto names = split(list, ',');
  std::erase(names, "");
  return names;
}

bool is_ours(const Network& network, const std::string& address) {
  return std::ranges::any_of(network.interfaces, [&](const Interface& interface) {
    return std::ranges::find(interface.addresses, address) != interface.addresses.end();
  });
}

std::string all_names(const Network& network) {
  std::vector<std::string> names;
  for (const auto& interface : network.interfaces) names.push_back(interface.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

Finding check_interface_list(const Network& network, const std::string& variable, const std::string& value,
                             const std::vector<std::string>& names, bool by_prefix) {
  for (const auto& name : names) {
    const auto fits = [&](const Interface& interface) {
      return interface.up && (by_prefix ? interface.name.starts_with(name) : interface.name == name);
    };
    if (std::ranges::any_of(network.interfaces, fits)) continue;
    return problem(variable, fmt::format("is \"{}\", but no interface {} is up", value, name),
                   fmt::format("unset it, or name one of: {}", all_names(network)));
  }
  return ok(variable, fmt::format("\"{}\" is up", value));
}

// NCCL takes name prefixes, "=" before the list for exact names, and "^" for all other interfaces.
Finding check_nccl_interfaces(const Network& network, const std::string& value) {
  if (value.starts_with('^')) return ok("NCCL_SOCKET_IFNAME", fmt::format("leaves out {}", value.substr(1)));
  const bool exact = value.starts_with('=');
  return check_interface_list(network, "NCCL_SOCKET_IFNAME", value, names_in(value.substr(exact ? 1 : 0)),
                              !exact);
}

}  // namespace

Finding check_loopback(const Ports& ports) {
  if (ports.loopback_error.empty()) return ok("loopback", "connections within this host work");
  return problem("loopback", ports.loopback_error,
                 fmt::format("enable the interface (ip link set lo up); {}", kFirewall));
}

Finding check_own_address(const Ports& ports) {
  if (ports.own_address.empty()) {
    return warning("own address", "no interface besides loopback has an address",
                   "no action for one host; for several, configure the network (ip addr, ip link)");
  }
  if (ports.own_error.empty())
    return ok("own address", fmt::format("{} accepts connections", ports.own_address));
  return problem("own address", ports.own_error, kFirewall);
}

Findings check_port(const Ports& ports) {
  if (!ports.port) return {};
  const auto name = fmt::format("port {}", *ports.port);
  if (ports.port_error.empty()) return {ok(name, "free")};
  return {problem(
      name, ports.port_error,
      fmt::format("find its owner (ss -ltnp 'sport = :{}') and end it, or use another port", *ports.port))};
}

Finding check_interfaces(const Network& network) {
  std::vector<std::string> up;
  for (const auto& interface : network.interfaces) {
    if (!interface.up || interface.addresses.empty()) continue;
    up.push_back(fmt::format("{} ({})", interface.name, fmt::join(interface.addresses, ", ")));
  }
  if (!up.empty()) return ok("interfaces", fmt::format("{}", fmt::join(up, ", ")));
  return problem("interfaces", "none is up", "enable the interfaces (ip link set lo up, ip addr)");
}

Finding check_host_name(const Network& network) {
  const auto remedy = fmt::format(
      "add a line \"ADDRESS {}\" with an address of this host to /etc/hosts, or correct the DNS; or set "
      "GLOO_SOCKET_IFNAME and --master-addr",
      network.host_name);
  if (!network.resolve_error.empty()) return warning("host name", network.resolve_error, remedy);
  const auto addresses = fmt::format("{}", fmt::join(network.resolved, ", "));
  const bool ours = std::ranges::any_of(
      network.resolved, [&](const auto& one) { return is_ours(network, one) || one.starts_with("127."); });
  if (ours) return ok("host name", fmt::format("{} is {}", network.host_name, addresses));
  return problem(
      "host name",
      fmt::format("{} resolves to {}, which is not an address of this host", network.host_name, addresses),
      remedy);
}

Findings check_interface_variables(const Network& network, const Env& env) {
  Findings findings;
  if (const auto value = env.get("GLOO_SOCKET_IFNAME")) {
    findings.push_back(check_interface_list(network, "GLOO_SOCKET_IFNAME", *value, names_in(*value), false));
  }
  if (const auto value = env.get("NCCL_SOCKET_IFNAME"))
    findings.push_back(check_nccl_interfaces(network, *value));
  return findings;
}

}  // namespace lockstep::doctor
