// SPDX-License-Identifier: BSD-3-Clause
#include "machine/topology.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <sstream>

#include <fmt/format.h>

namespace lockstep::machine {
namespace {

namespace fs = std::filesystem;

std::optional<int> number_in(const fs::path& file) {
  int value = 0;
  std::ifstream stream(file);
  return stream >> value ? std::optional<int>(value) : std::nullopt;
}

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
  const int package = std::max(0, number_in(topology / "physical_package_id").value_or(0));
  return {.cpu = cpu, .core = threads.front(), .package = package};
}

}  // namespace

std::string first_line(const fs::path& file) {
  std::string line;
  std::ifstream stream(file);
  std::getline(stream, line);
  return line;
}

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

}  // namespace lockstep::machine
