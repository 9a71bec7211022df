// SPDX-License-Identifier: BSD-3-Clause
#include "machine/host.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <sstream>
#include <sys/utsname.h>
#include <tuple>

#include <fmt/format.h>

#include "base/shared_memory.h"
#include "base/throw_error.h"

namespace lockstep::machine {
namespace {

namespace fs = std::filesystem;

std::string architecture() {
  utsname names{};
  return ::uname(&names) == 0 ? names.machine : "unknown";
}

std::string model_name(const fs::path& cpuinfo) {
  std::ifstream stream(cpuinfo);
  for (std::string line; std::getline(stream, line);) {
    const auto colon = line.find(": ");
    if (colon == std::string::npos) continue;
    // x86 and most others; POWER; what ARM boards write.
    for (const char* key : {"model name", "cpu\t", "Model"}) {
      if (line.starts_with(key)) return line.substr(colon + 2);
    }
  }
  return architecture();
}

}  // namespace

Memory read_memory(const fs::path& proc, const fs::path& process) {
  const Cgroups groups(process);
  const auto file = proc / "meminfo";
  return {.total = meminfo_bytes(file, "MemTotal").value_or(total_memory()),
          .available = meminfo_bytes(file, "MemAvailable").value_or(unused_memory()),
          .cgroup_limit = groups.memory_limit(),
          .cgroup_left = groups.memory_left()};
}

std::vector<NumaNode> read_numa_nodes(const fs::path& sysfs) {
  const auto folder = sysfs / "devices/system/node";
  std::vector<NumaNode> nodes;
  for (const int node : parse_cpu_list(first_line(folder / "online"))) {
    const auto own = folder / fmt::format("node{}", node);
    nodes.push_back({.node = node,
                     .cpus = parse_cpu_list(first_line(own / "cpulist")),
                     .total = meminfo_bytes(own / "meminfo", "MemTotal").value_or(0),
                     .free = meminfo_bytes(own / "meminfo", "MemFree").value_or(0)});
  }
  return nodes;
}

Processor read_processor(const fs::path& sysfs, const fs::path& proc, const fs::path& process) {
  const auto cores = read_cores(sysfs);
  std::set<int> physical;
  std::set<int> packages;
  for (const auto& core : cores) {
    physical.insert(core.core);
    packages.insert(core.package);
  }
  const auto online = parse_cpu_list(first_line(sysfs / "devices/system/cpu/online"));
  Processor processor{.model = model_name(proc / "cpuinfo"),
                      .online = static_cast<int>(online.empty() ? cores.size() : online.size()),
                      .allowed = static_cast<int>(cores.size()),
                      .quota = Cgroups(process).cpu_quota(),
                      .usable = usable_cores(),
                      .physical = static_cast<int>(physical.size()),
                      .packages = static_cast<int>(packages.size())};
  std::ifstream(proc / "loadavg") >> processor.load;
  return processor;
}

std::string cpu_list_text(const std::vector<int>& cpus) {
  std::string text;
  for (std::size_t begin = 0; begin < cpus.size();) {
    std::size_t end = begin + 1;
    while (end < cpus.size() && cpus[end] == cpus[end - 1] + 1) ++end;
    if (!text.empty()) text += ',';
    text += std::to_string(cpus[begin]);
    if (end - begin > 1) text += fmt::format("-{}", cpus[end - 1]);
    begin = end;
  }
  return text;
}

namespace {

std::vector<int> online_among(const fs::path& cpus, const std::vector<int>& allowed) {
  const auto online = parse_cpu_list(first_line(cpus / "online"));
  std::vector<int> both;
  std::ranges::copy_if(allowed, std::back_inserter(both),
                       [&](int cpu) { return std::ranges::binary_search(online, cpu); });
  if (both.empty()) both = allowed;
  std::ranges::sort(both);
  return both;
}

std::map<int, int> node_of_cpus(const fs::path& nodes) {
  std::map<int, int> node_of;
  for (const int node : parse_cpu_list(first_line(nodes / "online"))) {
    const auto cpus = parse_cpu_list(first_line(nodes / fmt::format("node{}", node) / "cpulist"));
    for (const int cpu : cpus) node_of[cpu] = node;
  }
  return node_of;
}

Core read_core(const fs::path& cpus, int cpu) {
  const auto topology = cpus / fmt::format("cpu{}", cpu) / "topology";
  auto threads = parse_cpu_list(first_line(topology / "thread_siblings_list"));
  if (threads.empty()) threads = {cpu};
  // A machine without packages says -1.
  const int package = std::max(0, number_in<int>(topology / "physical_package_id").value_or(0));
  return {.cpu = cpu, .core = threads.front(), .package = package};
}

}  // namespace

std::vector<int> parse_cpu_list(const std::string& text) {
  std::vector<int> numbers;
  std::istringstream stream(text);
  for (int first = 0; stream >> first;) {
    int last = first;
    if (stream.peek() == '-') {
      stream.ignore();
      if (!(stream >> last)) break;
    }
    for (int number = first; number <= last; ++number) numbers.push_back(number);
    if (stream.get() != ',') break;
  }
  std::ranges::sort(numbers);
  return numbers;
}

std::vector<Core> read_cores(const fs::path& sysfs, const std::vector<int>& allowed) {
  const auto system = sysfs / "devices/system";
  const auto node_of = node_of_cpus(system / "node");
  std::vector<Core> cores;
  for (const int cpu : online_among(system / "cpu", allowed)) {
    auto core = read_core(system / "cpu", cpu);
    if (const auto node = node_of.find(cpu); node != node_of.end()) core.numa_node = node->second;
    cores.push_back(core);
  }
  return cores;
}

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
    throw_error<ArgumentError>("cores cannot be assigned to {} ranks; 1 or more are needed", ranks);
  const auto count = static_cast<std::size_t>(ranks);
  std::vector<std::vector<int>> assigned(count);
  if (binding == Binding::none || cores.empty()) return assigned;
  const auto shares = partition(cores, std::min(count, cores.size()), binding);
  for (std::size_t rank = 0; rank < count; ++rank) assigned[rank] = shares[rank % shares.size()];
  return assigned;
}

}  // namespace lockstep::machine
