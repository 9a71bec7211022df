// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/machine/topology.h>

namespace lockstep::machine {
namespace {

// What is given to a rank as a whole: a physical core with its threads, or one thread.
using Unit = std::vector<int>;
using Units = std::vector<Unit>;

// The units that are near the same memory.
struct Place {
  int package = 0;
  Units units{};
};

// Neighbours stand beside each other.
std::vector<Place> places_of(std::vector<Core> cores, bool whole_cores) {
  const auto key = [](const Core& core) {
    return std::tuple(core.package, core.numa_node, core.core, core.cpu);
  };
  std::ranges::sort(cores, {}, key);
  std::vector<Place> places;
  const Core* before = nullptr;
  for (const auto& core : cores) {
    const bool near =
        before != nullptr && before->package == core.package && before->numa_node == core.numa_node;
    if (!near) places.push_back({.package = core.package});
    auto& units = places.back().units;
    if (near && whole_cores && before->core == core.core) {
      units.back().push_back(core.cpu);
    } else {
      units.push_back({core.cpu});
    }
    before = &core;
  }
  return places;
}

std::size_t unit_count(const std::vector<Place>& places) {
  return std::accumulate(places.begin(), places.end(), std::size_t{0},
                         [](std::size_t count, const Place& place) { return count + place.units.size(); });
}

// Part `index` of `parts` of a row, the sizes of all parts equal to within one.
template <typename Row>
Row part_of(const Row& row, std::size_t index, std::size_t parts) {
  const auto bound = [&](std::size_t part) {
    return row.begin() + static_cast<std::ptrdiff_t>(row.size() * part / parts);
  };
  return Row(bound(index), bound(index + 1));
}

Units units_of(const std::vector<Place>& places) {
  Units all;
  for (const auto& place : places) all.insert(all.end(), place.units.begin(), place.units.end());
  return all;
}

// The first place of each package, then the second of each, and so on.
std::vector<Place> alternating(const std::vector<Place>& places) {
  std::map<int, int> seen;
  std::vector<std::pair<int, const Place*>> turns;
  for (const auto& place : places) turns.emplace_back(seen[place.package]++, &place);
  std::ranges::stable_sort(turns, {}, [](const auto& turn) { return turn.first; });
  std::vector<Place> order;
  for (const auto& turn : turns) order.push_back(*turn.second);
  return order;
}

// [i]: the place of rank i. A rank goes where each of those that share the place would have most.
std::vector<std::size_t> dealt(const std::vector<Place>& places, std::size_t ranks) {
  std::vector<std::size_t> guests(places.size(), 0);
  std::vector<std::size_t> place_of;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    std::size_t best = 0;
    for (std::size_t other = 1; other < places.size(); ++other) {
      const auto here = places[best].units.size() * (guests[other] + 1);
      const auto there = places[other].units.size() * (guests[best] + 1);
      if (there > here) best = other;
    }
    ++guests[best];
    place_of.push_back(best);
  }
  return place_of;
}

std::vector<Units> spread_units(const std::vector<Place>& places, std::size_t ranks) {
  std::vector<Units> shares(ranks);
  if (ranks <= places.size()) {
    for (std::size_t rank = 0; rank < ranks; ++rank) shares[rank] = units_of(part_of(places, rank, ranks));
    return shares;
  }
  const auto order = alternating(places);
  const auto place_of = dealt(order, ranks);
  std::vector<std::size_t> served(order.size(), 0);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto place = place_of[rank];
    const auto guests = static_cast<std::size_t>(std::ranges::count(place_of, place));
    shares[rank] = part_of(order[place].units, served[place]++, guests);
  }
  return shares;
}

std::vector<Units> compact_units(const std::vector<Place>& places, std::size_t ranks) {
  const auto all = units_of(places);
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

// For no more ranks than CPUs.
std::vector<std::vector<int>> share_out(const std::vector<Core>& cores, std::size_t ranks, Binding binding) {
  auto places = places_of(cores, /*whole_cores=*/true);
  if (ranks > unit_count(places)) places = places_of(cores, /*whole_cores=*/false);
  const auto shares =
      binding == Binding::compact ? compact_units(places, ranks) : spread_units(places, ranks);
  std::vector<std::vector<int>> cpus;
  for (const auto& share : shares) cpus.push_back(cpus_of(share));
  return cpus;
}

}  // namespace

std::vector<std::vector<int>> assign_cores(const std::vector<Core>& cores, int ranks, Binding binding) {
  if (ranks < 1)
    throw ArgumentError(fmt::format("cores cannot be shared among {} ranks: give 1 or more", ranks));
  const auto count = static_cast<std::size_t>(ranks);
  std::vector<std::vector<int>> assigned(count);
  if (binding == Binding::none || cores.empty()) return assigned;
  const auto shares = share_out(cores, std::min(count, cores.size()), binding);
  for (std::size_t rank = 0; rank < count; ++rank) assigned[rank] = shares[rank % shares.size()];
  return assigned;
}

}  // namespace lockstep::machine
