// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <source_location>
#include <vector>

#include <lockstep/comm/process_group.h>

namespace lockstep::fsdp {

// The parts of a group through which the ranks of a host gather parameters into memory that they share.
struct HostSplit {
  ProcessGroup host;            // the ranks of this host
  ProcessGroup lane;            // one rank of each host, of which this rank is one
  std::vector<int> lane_ranks;  // [lane rank]: its rank in the group
};

// Whether a group has them: several hosts with equally many ranks, more than one, that map memory.
bool can_split_by_hosts(const ProcessGroup& group);
// The number of ranks of this rank's host.
int ranks_of_host(const ProcessGroup& group);
// Collective.
HostSplit split_by_hosts(const ProcessGroup& group);

}  // namespace lockstep::fsdp
