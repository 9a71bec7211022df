// SPDX-License-Identifier: BSD-3-Clause
#include "backends/hierarchical/legs.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <thread>

#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <lockstep/base/error.h>

#include "backends/factories.h"
#include "base/throw_error.h"
#include "node/node_group.h"

namespace lockstep::backends {
namespace {

using Leg = HostCollectives::Leg;

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
      "rank {} of {}: backend hierarchical: group {}: {} is {} here and {} on rank 0; set it alike "
      "on all ranks",
      request.rank, request.size, request.group_name, kNetworkVariable, own, first);
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
    const std::string text = error.what();
    throw_error<RendezvousError>("rank {} of {}: the hosts of group {} could not be connected: {}",
                                 request.rank, request.size, request.group_name,
                                 text.substr(0, text.find('\n')));
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

}  // namespace lockstep::backends
