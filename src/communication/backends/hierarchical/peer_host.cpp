// SPDX-License-Identifier: BSD-3-Clause
#include "backends/hierarchical/peer_host.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <limits>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <optional>
#include <sstream>
#include <sys/socket.h>
#include <sys/stat.h>

#include <fmt/format.h>

#include "base/host.h"
#include "base/sockets.h"

namespace lockstep::backends {
namespace {

// The connections of this process to one host.
struct Traffic {
  bool exists = false;
  std::uint32_t unacknowledged = 0;                                   // packets
  std::uint32_t silence = std::numeric_limits<std::uint32_t>::max();  // milliseconds without a packet
  std::uint32_t pause = std::numeric_limits<std::uint32_t>::max();    // without data

  void add(const tcp_info& info) {
    exists = true;
    unacknowledged += info.tcpi_unacked;
    silence = std::min({silence, info.tcpi_last_ack_recv, info.tcpi_last_data_recv});
    pause = std::min(pause, info.tcpi_last_data_recv);
  }

  std::string text(const std::string& host) const {
    if (unacknowledged > 0) {
      return fmt::format(
          "{} has not acknowledged {} packets, and its last one came {} ms ago: the host or network may be "
          "down",
          host, unacknowledged, silence);
    }
    return fmt::format(
        "{} has acknowledged all packets, but sent nothing for {} ms: its ranks may be stopped or not in "
        "this call",
        host, pause);
  }
};

// 0 for a descriptor that is closed.
ino_t inode_of(int file) {
  struct stat status {};
  return ::fstat(file, &status) == 0 ? status.st_ino : 0;
}

// Nothing for other files, which another thread may also have closed meanwhile.
std::optional<tcp_info> info_of(int file) {
  tcp_info info{};
  socklen_t length = sizeof(info);
  if (::getsockopt(file, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return std::nullopt;
  return info.tcpi_state == TCP_ESTABLISHED ? std::optional(info) : std::nullopt;
}

// Nothing if another file has the descriptor now.
std::optional<tcp_info> info_of(const TcpConnection& connection) {
  if (inode_of(connection.file) != connection.inode) return std::nullopt;
  return info_of(connection.file);
}

std::string peer_of(int file) {
  SocketAddress peer;
  peer.length = sizeof(peer.storage);
  if (::getpeername(file, reinterpret_cast<sockaddr*>(&peer.storage), &peer.length) != 0) return {};
  const auto text = peer.text();
  constexpr std::string_view kMapped = "::ffff:";  // IPv4 over a socket for IPv6
  return text.starts_with(kMapped) ? text.substr(kMapped.size()) : text;
}

}  // namespace

PeerHost PeerHost::own() {
  PeerHost host{.name = host_name(), .addresses = {}};
  for (const auto& interface : network_interfaces()) {
    // Also of those that are not up: the kernel may notice a second late that an interface runs.
    if (!interface.loopback)
      host.addresses.insert(host.addresses.end(), interface.addresses.begin(), interface.addresses.end());
  }
  return host;
}

std::string PeerHost::text() const {
  auto text = name;
  for (const auto& address : addresses) text += "\n" + address;
  return text;
}

PeerHost PeerHost::from_text(const std::string& text) {
  std::istringstream lines(text);
  PeerHost host;
  std::getline(lines, host.name);
  for (std::string line; std::getline(lines, line);) host.addresses.push_back(line);
  return host;
}

std::vector<TcpConnection> tcp_connections() {
  std::vector<TcpConnection> connections;
  std::error_code failed;
  for (std::filesystem::directory_iterator entry("/proc/self/fd", failed), end; !failed && entry != end;
       entry.increment(failed)) {
    const auto name = entry->path().filename().string();
    int file = -1;
    std::from_chars(name.data(), name.data() + name.size(), file);
    if (info_of(file)) connections.push_back({.file = file, .inode = inode_of(file)});
  }
  std::ranges::sort(connections);
  return connections;
}

std::string describe_connections(const Peers& peers) {
  const auto& hosts = peers.hosts;
  std::vector<Traffic> traffic(hosts.size());
  for (const auto& connection : peers.connections) {
    const auto info = info_of(connection);
    if (!info) continue;
    const auto peer = peer_of(connection.file);
    for (std::size_t i = 0; i < hosts.size(); ++i)
      if (std::ranges::find(hosts[i].addresses, peer) != hosts[i].addresses.end()) traffic[i].add(*info);
  }
  std::string text;
  for (std::size_t i = 0; i < hosts.size(); ++i)
    if (traffic[i].exists) text += (text.empty() ? "" : ". ") + traffic[i].text(hosts[i].name);
  return text;
}

}  // namespace lockstep::backends
