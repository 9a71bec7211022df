// SPDX-License-Identifier: BSD-3-Clause
#include "base/host.h"

#include <fstream>
#include <set>
#include <sys/utsname.h>

#include <fmt/format.h>

#include "base/cgroup.h"
#include "machine/host.h"
#include "machine/topology.h"

namespace lockstep::machine {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kKibibyte = 1024;

// The bytes behind "MemTotal:" in "MemTotal: 123 kB" or "Node 0 MemTotal: 123 kB"; 0 when there are none.
std::uint64_t meminfo_bytes(const fs::path& file, const std::string& key) {
  std::ifstream stream(file);
  for (std::string word; stream >> word;) {
    std::uint64_t kibibytes = 0;
    if (word == key + ":" && stream >> kibibytes) return kibibytes * kKibibyte;
  }
  return 0;
}

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
  return {.total = meminfo_bytes(file, "MemTotal"),
          .available = meminfo_bytes(file, "MemAvailable"),
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
                     .total = meminfo_bytes(own / "meminfo", "MemTotal"),
                     .free = meminfo_bytes(own / "meminfo", "MemFree")});
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

}  // namespace lockstep::machine
