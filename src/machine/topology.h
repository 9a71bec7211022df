// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
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

// The first line of a file; empty if there is none.
std::string first_line(const std::filesystem::path& file);

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

}  // namespace lockstep::machine
