// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <lockstep/base/host.h>

namespace lockstep::machine {

/// A logical CPU that this process may run on.
struct Core {
  int cpu = 0;        ///< its number for sched_setaffinity(2)
  int core = 0;       ///< its physical core: the lowest CPU that is a thread of it, so unique on the machine
  int package = 0;    ///< its socket
  int numa_node = 0;  ///< the memory that is nearest

  bool operator==(const Core&) const = default;
};

/// Those of `allowed` that are online, ascending by CPU, as the tree under `sysfs` describes them. What the
/// tree does not say: every CPU is a core of its own, in package 0 and on NUMA node 0. Never empty unless
/// `allowed` is.
std::vector<Core> read_cores(const std::filesystem::path& sysfs = "/sys",
                             const std::vector<int>& allowed = affinity_cpus());

/// The numbers in the kernel's notation "0-3,8,10-11", ascending; what is no such list ends it.
std::vector<int> parse_cpu_list(const std::string& text);

/// How ranks are bound to cores.
enum class Binding {
  none,     ///< not at all: the scheduler moves them
  compact,  ///< consecutive ranks are close to each other
  spread,   ///< consecutive ranks are on different packages and NUMA nodes
};

/// [i]: the CPUs that rank i is to be bound to, all of `cores` shared out; empty lists with Binding::none.
///
/// With no more ranks than physical cores, every CPU belongs to one rank, all threads of a physical core to
/// the same. compact: equal shares (by at most one core) along the order of NUMA nodes. spread: the ranks are
/// dealt to the NUMA nodes, alternating between packages, and each node's cores shared among its ranks, so
/// that no rank reaches over to another node; with fewer ranks than nodes a rank gets neighbouring nodes.
/// With more ranks than physical cores a rank gets one thread of a core or more; with more ranks than CPUs,
/// ranks take turns in sharing one.
///
/// Throws ArgumentError when `ranks` is below 1.
std::vector<std::vector<int>> assign_cores(const std::vector<Core>& cores, int ranks, Binding binding);

}  // namespace lockstep::machine
