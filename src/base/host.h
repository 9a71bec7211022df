// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

namespace lockstep {

// The host name of gethostname(2).
std::string host_name();

// Equal in two processes exactly when they run under the same kernel boot: the kernel's boot id and the
// network namespace, so that two containers with networks of their own count as two hosts.
std::string host_identity();

// The logical CPUs of the calling thread's affinity mask, ascending; at least one.
std::vector<int> affinity_cpus();

// Number of cores that this process can use: the minimum of its affinity mask and the CPU quotas of its
// cgroup and those above it (versions 1 and 2); at least 1.
int usable_cores();

}  // namespace lockstep
