// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/host.h"

namespace lockstep::machine {

// A logical CPU that this process may run on.
struct Core {
  int cpu = 0;        // its number for sched_setaffinity(2)
  int core = 0;       // its physical core: the lowest CPU that is a thread of it, so unique on the machine
  int package = 0;    // its socket
  int numa_node = 0;  // the memory that is nearest

  bool operator==(const Core&) const = default;
};

// Those of `allowed` that are online, ascending by CPU, as the tree under `sysfs` describes them. Without
// information, every CPU is its own core in package 0 and NUMA node 0. Empty only if `allowed` is.
std::vector<Core> read_cores(const std::filesystem::path& sysfs = "/sys",
                             const std::vector<int>& allowed = affinity_cpus());

// The numbers in the kernel's notation "0-3,8,10-11", ascending; parsing stops at the first error.
std::vector<int> parse_cpu_list(const std::string& text);

// How ranks are bound to cores.
enum class Binding {
  none,     // not bound
  compact,  // consecutive ranks are close to each other
  spread,   // consecutive ranks are on different packages and NUMA nodes
};

// [i]: the CPUs that rank i is to be bound to, a partition of `cores`; empty lists with Binding::none.
//
// With no more ranks than physical cores, every CPU belongs to one rank, all threads of a physical core to
// the same. compact: shares that differ by at most one core, in the order of NUMA nodes. spread: ranks are
// distributed over the NUMA nodes, alternating between packages, and each node's cores among its ranks, so
// that no rank spans nodes; with fewer ranks than nodes a rank gets neighbouring nodes.
// With more ranks than physical cores a rank gets one or more threads of a core; with more ranks than CPUs,
// several ranks share a CPU.
//
// Throws ArgumentError when `ranks` is below 1.
std::vector<std::vector<int>> assign_cores(const std::vector<Core>& cores, int ranks, Binding binding);

// The host's memory, in bytes.
struct Memory {
  std::uint64_t total = 0;
  std::uint64_t available = 0;                  // without swapping, ignoring cgroups
  std::optional<std::uint64_t> cgroup_limit{};  // the tightest of this process
  std::optional<std::uint64_t> cgroup_left{};   // in the group with the least left
};

// A NUMA node and its memory in bytes.
struct NumaNode {
  int node = 0;
  std::vector<int> cpus{};  // including those outside the affinity mask
  std::uint64_t total = 0;
  std::uint64_t free = 0;
};

// The processors.
struct Processor {
  std::string model{};            // as in "AMD EPYC 7763 64-Core Processor"; the architecture if unknown
  int online = 1;                 // logical CPUs of the host
  int allowed = 1;                // CPUs in the affinity mask
  std::optional<double> quota{};  // CPU time that the cgroups allow, in cores
  int usable = 1;                 // usable_cores()
  int physical = 1;               // cores, not threads, among the allowed
  int packages = 1;               // sockets among the allowed
  double load = 0;                // runnable processes, mean of the last minute
};

// `process`: the process's folder in /proc.
Memory read_memory(const std::filesystem::path& proc = "/proc",
                   const std::filesystem::path& process = "/proc/self");

// Those online; empty where the kernel knows none.
std::vector<NumaNode> read_numa_nodes(const std::filesystem::path& sysfs = "/sys");

Processor read_processor(const std::filesystem::path& sysfs = "/sys",
                         const std::filesystem::path& proc = "/proc",
                         const std::filesystem::path& process = "/proc/self");

// "0-3,8" for {0, 1, 2, 3, 8}: the kernel's notation of an ascending list.
std::string cpu_list_text(const std::vector<int>& cpus);

}  // namespace lockstep::machine
