// SPDX-License-Identifier: BSD-3-Clause
#include "backends/hierarchical/legs.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iterator>
#include <limits>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <numeric>
#include <optional>
#include <sstream>
#include <sys/socket.h>
#include <sys/stat.h>
#include <thread>

#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "backends/factories.h"
#include "base/host.h"
#include "base/sockets.h"
#include "base/text.h"
#include "base/throw_error.h"
#include "node/node_group.h"

namespace lockstep::backends {
namespace {

constexpr std::size_t kNamedRanks = 16;  // of a lane, in errors
constexpr auto kLegPollPeriod = std::chrono::microseconds(200);

// All ranks must name the network of rank 0.
std::string agree_on_network(const BackendRequest& request) {
  constexpr const char* kKey = "network";
  auto own = network_between_hosts(request.env);
  if (request.rank == 0) request.store->set(kKey, own);
  request.store->wait({kKey}, request.timeout);
  const auto first = request.store->get_to_str(kKey);
  if (first == own) return own;
  throw_error<RendezvousError>(
      request.reporter(), request.about({0}),
      "backend hierarchical: group {}: {} is {} here and {} on rank 0; set it alike on all ranks",
      request.group_name, kNetworkVariable, own, first);
}

BackendRequest leg_request(const BackendRequest& whole, const std::string& name,
                           const std::vector<int>& ranks) {
  auto part = whole;
  part.store = c10::make_intrusive<c10d::PrefixStore>(name, whole.store);
  part.rank = static_cast<int>(std::ranges::find(ranks, whole.rank) - ranks.begin());
  part.size = static_cast<int>(ranks.size());
  part.group_name = fmt::format("{}, {}", whole.group_name, name);
  part.key += "/" + name;
  return part;
}

Leg leg_of(const BackendHandle& handle, const BackendRequest& request, const std::vector<int>& ranks) {
  return std::make_shared<comm::GroupState>(handle.backend,
                                            ProcessGroupInfo{.name = request.group_name,
                                                             .global_ranks = ranks,
                                                             .timeout = request.timeout,
                                                             .traits = handle.traits,
                                                             .node_group = handle.node_group});
}

Leg connect_host(const BackendRequest& request, const HostLayout& layout) {
  const auto& ranks = layout.members(layout.host());
  auto part = leg_request(request, fmt::format("host {}", layout.host()), ranks);
  part.one_host = true;
  part.shm.has_network = true;
  const auto handle = create_shm(part);
  handle.node_group->set_shown_ranks(ranks);
  return leg_of(handle, part, ranks);
}

// gloo: without an all-to-all of connections, whose number and whose requests to the store grow
// quadratically. mpi: a rank inside of a blocking function of MPI could not leave the group after an error.
BackendHandle connect_network(const std::string& network, BackendRequest request) {
  request.gloo.connect_on_use = true;
  request.mpi.can_end_calls = true;
  return create_backend(BackendSpec(network), request);
}

std::string find_lost(const BackendRequest& request) {
  try {
    return request.find_lost();
  } catch (const std::exception&) {
    return "the ranks' store is gone";
  }
}

// Gloo waits until the timeout for a rank that dies before they are connected, and its destructor for that
// wait, so the lane is leaked then.
void wait_unless_lost(c10d::Work& work, const c10::intrusive_ptr<c10d::Backend>& lane,
                      const BackendRequest& request) {
  while (request.find_lost && !work.isCompleted()) {
    const auto lost = find_lost(request);
    if (lost.empty()) {
      std::this_thread::sleep_for(kLegPollPeriod);
      continue;
    }
    lane->abort();
    new c10::intrusive_ptr(lane);
    throw RendezvousError(lost);
  }
  work.wait();
}

// Connects the neighbours in the ring, so that each notices when the other dies, and waits for all of them.
void connect_ring(const BackendHandle& lane, const BackendRequest& request) {
  std::vector<at::Tensor> word{at::zeros({1})};
  try {
    wait_unless_lost(*lane.backend->allreduce(word), lane.backend, request);
  } catch (const std::exception& error) {
    throw_error<RendezvousError>(request.reporter(), request.about(),
                                 "the hosts of group {} could not be connected: {}", request.group_name,
                                 first_line_of(error.what()));
  }
}

std::string host_key(int rank) { return fmt::format("peer_host/{}", rank); }

// Before any rank waits in a lane: MPI's initialisation waits for all ranks.
void publish_host(const BackendRequest& request) {
  request.store->set(host_key(request.rank), PeerHost::own().text());
}

// The hosts of these ranks. Empty if there are too many to be named.
std::vector<PeerHost> hosts_of(const std::vector<int>& ranks, const BackendRequest& request) {
  if (ranks.size() > kNamedRanks) return {};
  std::vector<std::string> keys;
  for (const int rank : ranks) keys.push_back(host_key(rank));
  request.store->wait(keys, request.timeout);
  std::vector<PeerHost> hosts;
  for (const auto& value : request.store->multiGet(keys))
    hosts.push_back(PeerHost::from_text({value.begin(), value.end()}));
  return hosts;
}

// "default, lane 0 of rank 0 on node1, rank 2 on node2"
std::string name_of_lane(const std::string& name, const std::vector<int>& ranks,
                         const std::vector<PeerHost>& hosts) {
  std::vector<std::string> places;
  for (std::size_t i = 0; i < hosts.size(); ++i)
    places.push_back(fmt::format("rank {} on {}", ranks[i], hosts[i].name));
  return places.empty() ? name : fmt::format("{} of {}", name, fmt::join(places, ", "));
}

// All ranks connect their lanes in ascending order, so none waits for ranks that wait for it.
void connect_lanes(Legs& legs, const std::string& network, const BackendRequest& request,
                   const HostLayout& layout) {
  const auto before = tcp_connections();
  for (int number = layout.local_rank(); number < layout.lanes(); number += layout.local_size()) {
    const auto ranks = layout.lane(number);
    auto part = leg_request(request, fmt::format("lane {}", number), ranks);
    auto hosts = hosts_of(ranks, request);
    part.group_name = name_of_lane(part.group_name, ranks, hosts);
    const auto handle = connect_network(network, part);
    connect_ring(handle, part);
    legs.lanes.push_back(leg_of(handle, part, ranks));
    legs.lanes.back()->set_job(legs.host->node_group());
    if (hosts.empty() || network != "gloo") continue;
    hosts.erase(hosts.begin() + part.rank);
    legs.peers.hosts = std::move(hosts);  // the same in all lanes
  }
  std::ranges::set_difference(tcp_connections(), before, std::back_inserter(legs.peers.connections));
}

}  // namespace

Legs connect_legs(const BackendRequest& request, const HostLayout& layout) {
  const auto network = agree_on_network(request);
  publish_host(request);
  std::vector<int> all(static_cast<std::size_t>(request.size));
  std::iota(all.begin(), all.end(), 0);
  Legs legs{.network = network, .host = connect_host(request, layout)};
  connect_lanes(legs, network, request, layout);
  legs.flat = connect_network(network, leg_request(request, "network", all));
  const auto connect_all = [network, part = leg_request(request, "all_to_all", all), all] {
    return leg_of(connect_network(network, part), part, all);
  };
  legs.connect_all = connect_all;
  // MPI makes a communicator without a limit of time, so a call could not end.
  if (network == "mpi") legs.connect_all = [leg = connect_all()] { return leg; };
  return legs;
}

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
