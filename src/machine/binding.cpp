// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "machine/topology.h"

namespace lockstep::machine {
namespace {

// Assigned to one rank as a whole: a physical core with its threads, or one thread.
using Unit = std::vector<int>;
using Units = std::vector<Unit>;

// The units of one NUMA node.
struct NumaUnits {
  int package = 0;
  Units units{};
};

// Neighbouring nodes are adjacent.
std::vector<NumaUnits> nodes_of(std::vector<Core> cores, bool whole_cores) {
  const auto key = [](const Core& core) {
    return std::tuple(core.package, core.numa_node, core.core, core.cpu);
  };
  std::ranges::sort(cores, {}, key);
  std::vector<NumaUnits> nodes;
  const Core* before = nullptr;
  for (const auto& core : cores) {
    const bool near =
        before != nullptr && before->package == core.package && before->numa_node == core.numa_node;
    if (!near) nodes.push_back({.package = core.package});
    auto& units = nodes.back().units;
    if (near && whole_cores && before->core == core.core) {
      units.back().push_back(core.cpu);
    } else {
      units.push_back({core.cpu});
    }
    before = &core;
  }
  return nodes;
}

std::size_t unit_count(const std::vector<NumaUnits>& nodes) {
  return std::accumulate(nodes.begin(), nodes.end(), std::size_t{0},
                         [](std::size_t count, const NumaUnits& node) { return count + node.units.size(); });
}

// Part `index` of `parts` of a row, the sizes of all parts equal to within one.
template <typename Row>
Row part_of(const Row& row, std::size_t index, std::size_t parts) {
  const auto bound = [&](std::size_t part) {
    return row.begin() + static_cast<std::ptrdiff_t>(row.size() * part / parts);
  };
  return Row(bound(index), bound(index + 1));
}

Units units_of(const std::vector<NumaUnits>& nodes) {
  Units all;
  for (const auto& node : nodes) all.insert(all.end(), node.units.begin(), node.units.end());
  return all;
}

// The first node of each package, then the second of each, and so on.
std::vector<NumaUnits> alternating(const std::vector<NumaUnits>& nodes) {
  std::map<int, int> seen;
  std::vector<std::pair<int, const NumaUnits*>> rounds;
  for (const auto& node : nodes) rounds.emplace_back(seen[node.package]++, &node);
  std::ranges::stable_sort(rounds, {}, [](const auto& round) { return round.first; });
  std::vector<NumaUnits> order;
  for (const auto& round : rounds) order.push_back(*round.second);
  return order;
}

// [i]: the node of rank i. Each rank goes to the node with the largest share per rank.
std::vector<std::size_t> distribute(const std::vector<NumaUnits>& nodes, std::size_t ranks) {
  std::vector<std::size_t> rank_counts(nodes.size(), 0);
  std::vector<std::size_t> node_of;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    std::size_t best = 0;
    for (std::size_t other = 1; other < nodes.size(); ++other) {
      const auto here = nodes[best].units.size() * (rank_counts[other] + 1);
      const auto there = nodes[other].units.size() * (rank_counts[best] + 1);
      if (there > here) best = other;
    }
    ++rank_counts[best];
    node_of.push_back(best);
  }
  return node_of;
}

std::vector<Units> spread_units(const std::vector<NumaUnits>& nodes, std::size_t ranks) {
  std::vector<Units> shares(ranks);
  if (ranks <= nodes.size()) {
    for (std::size_t rank = 0; rank < ranks; ++rank) shares[rank] = units_of(part_of(nodes, rank, ranks));
    return shares;
  }
  const auto order = alternating(nodes);
  const auto node_of = distribute(order, ranks);
  std::vector<std::size_t> assigned(order.size(), 0);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto node = node_of[rank];
    const auto rank_counts = static_cast<std::size_t>(std::ranges::count(node_of, node));
    shares[rank] = part_of(order[node].units, assigned[node]++, rank_counts);
  }
  return shares;
}

std::vector<Units> compact_units(const std::vector<NumaUnits>& nodes, std::size_t ranks) {
  const auto all = units_of(nodes);
  std::vector<Units> shares;
  for (std::size_t rank = 0; rank < ranks; ++rank) shares.push_back(part_of(all, rank, ranks));
  return shares;
}

std::vector<int> cpus_of(const Units& units) {
  std::vector<int> cpus;
  for (const auto& unit : units) cpus.insert(cpus.end(), unit.begin(), unit.end());
  std::ranges::sort(cpus);
  return cpus;
}

// REQUIRES at most as many ranks as CPUs.
std::vector<std::vector<int>> partition(const std::vector<Core>& cores, std::size_t ranks, Binding binding) {
  auto nodes = nodes_of(cores, /*whole_cores=*/true);
  if (ranks > unit_count(nodes)) nodes = nodes_of(cores, /*whole_cores=*/false);
  const auto shares = binding == Binding::compact ? compact_units(nodes, ranks) : spread_units(nodes, ranks);
  std::vector<std::vector<int>> cpus;
  for (const auto& share : shares) cpus.push_back(cpus_of(share));
  return cpus;
}

}  // namespace

std::vector<std::vector<int>> assign_cores(const std::vector<Core>& cores, int ranks, Binding binding) {
  if (ranks < 1)
    throw ArgumentError(fmt::format("cores cannot be assigned to {} ranks; 1 or more are needed", ranks));
  const auto count = static_cast<std::size_t>(ranks);
  std::vector<std::vector<int>> assigned(count);
  if (binding == Binding::none || cores.empty()) return assigned;
  const auto shares = partition(cores, std::min(count, cores.size()), binding);
  for (std::size_t rank = 0; rank < count; ++rank) assigned[rank] = shares[rank % shares.size()];
  return assigned;
}

}  // namespace lockstep::machine
