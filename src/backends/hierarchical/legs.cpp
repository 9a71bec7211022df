// SPDX-License-Identifier: BSD-3-Clause
#include "backends/hierarchical/legs.h"

#include <algorithm>
#include <numeric>

#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <lockstep/base/error.h>

#include "backends/factories.h"
#include "node/node_group.h"

namespace lockstep::backends {
namespace {

using Leg = HostCollectives::Leg;

constexpr std::size_t kNamedRanks = 16;  // of a lane, in errors

// All ranks must name the network of rank 0.
std::string agree_on_network(const BackendRequest& request) {
  constexpr const char* kKey = "network";
  auto own = network_between_hosts(request.env);
  if (request.rank == 0) request.store->set(kKey, own);
  request.store->wait({kKey}, request.timeout);
  const auto first = request.store->get_to_str(kKey);
  if (first == own) return own;
  throw RendezvousError(fmt::format(
      "rank {} of {}: backend hierarchical: group {}: {} is {} here and {} on rank 0; set it alike "
      "on all ranks",
      request.rank, request.size, request.group_name, kNetworkVariable, own, first));
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
  const auto handle = create_shm(part);
  handle.node_group->set_shown_ranks(ranks);
  return leg_of(handle, part, ranks);
}

// gloo: without an all-to-all of connections, whose number and whose requests to the store grow
// quadratically. mpi: a rank inside of a blocking function of MPI could not leave the group after an error.
BackendHandle connect_network(const std::string& network, BackendRequest request) {
  request.connect_on_use = true;
  request.can_end_calls = true;
  return create_backend(BackendSpec(network), request);
}

// Connects the neighbours in the ring, so that each notices when the other dies, and waits for all of them.
void connect_ring(const BackendHandle& lane, const BackendRequest& request) {
  std::vector<at::Tensor> word{at::zeros({1})};
  try {
    lane.backend->allreduce(word)->wait();
  } catch (const std::exception& error) {
    const std::string text = error.what();
    throw RendezvousError(fmt::format("rank {} of {}: the hosts of group {} could not be connected: {}",
                                      request.rank, request.size, request.group_name,
                                      text.substr(0, text.find('\n'))));
  }
}

// All ranks connect their lanes in ascending order, so none waits for ranks that wait for it.
std::vector<Leg> connect_lanes(const std::string& network, const BackendRequest& request,
                               const HostLayout& layout) {
  std::vector<Leg> lanes;
  for (int number = layout.local_rank(); number < layout.lanes(); number += layout.local_size()) {
    const auto ranks = layout.lane(number);
    auto part = leg_request(request, fmt::format("lane {}", number), ranks);
    if (ranks.size() <= kNamedRanks) part.group_name += fmt::format(" of ranks {}", fmt::join(ranks, ", "));
    const auto handle = connect_network(network, part);
    connect_ring(handle, part);
    lanes.push_back(leg_of(handle, part, ranks));
  }
  return lanes;
}

}  // namespace

Legs connect_legs(const BackendRequest& request, const HostLayout& layout) {
  const auto network = agree_on_network(request);
  std::vector<int> all(static_cast<std::size_t>(request.size));
  std::iota(all.begin(), all.end(), 0);
  return {.host = connect_host(request, layout),
          .lanes = connect_lanes(network, request, layout),
          .flat = connect_network(network, leg_request(request, "network", all)),
          .connect_all = [network, part = leg_request(request, "all_to_all", all), all] {
            return leg_of(connect_network(network, part), part, all);
          }};
}

}  // namespace lockstep::backends
