// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <utility>
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

// Parts of groups, each made once. The first call for a group is collective.
class GroupSplits {
 public:
  // This rank's part among those of `size` consecutive ranks.
  const ProcessGroup& parts(const ProcessGroup& ranks, int size);
  // For groups of can_split_by_hosts().
  std::shared_ptr<const HostSplit> hosts(const ProcessGroup& ranks);

 private:
  using Backend = c10::intrusive_ptr<c10d::Backend>;

  std::map<std::pair<Backend, int>, std::optional<ProcessGroup>> parts_;
  std::map<Backend, std::shared_ptr<const HostSplit>> hosts_;
};

}  // namespace lockstep::fsdp
