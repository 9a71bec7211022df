// SPDX-License-Identifier: BSD-3-Clause
#include "fsdp/group_splits.h"

#include "backends/hierarchical/host_layout.h"
#include "runtime/run.h"

namespace lockstep::fsdp {
namespace {

using backends::HostLayout;
using Parts = std::vector<std::vector<int>>;

constexpr const char* kCaller = "fully_shard()";

HostLayout layout_of(const ProcessGroup& group) {
  return {runtime::require_run(kCaller).hosts_of(group), group.rank()};
}

// Collective.
HostSplit split_by_hosts(const ProcessGroup& group) {
  const auto layout = layout_of(group);
  Parts hosts, lanes;
  for (int host = 0; host < layout.hosts(); ++host) hosts.push_back(layout.members(host));
  for (int lane = 0; lane < layout.lanes(); ++lane) lanes.push_back(layout.lane(lane));
  auto& run = runtime::require_run(kCaller);
  HostSplit groups{
      .host = run.split_group(group, hosts, {}), .lane = run.split_group(group, lanes, {}), .lane_ranks = {}};
  for (int i = 0; i < groups.lane.size(); ++i)
    for (int rank = 0; rank < group.size(); ++rank)
      if (group.global_rank(rank) == groups.lane.global_rank(i)) groups.lane_ranks.push_back(rank);
  return groups;
}

}  // namespace

bool can_split_by_hosts(const ProcessGroup& group) {
  if (group.backend_name() != "hierarchical") return false;
  const auto layout = layout_of(group);
  for (int host = 0; host < layout.hosts(); ++host)
    if (layout.size_of(host) != layout.lanes()) return false;
  return layout.hosts() > 1 && layout.lanes() > 1;
}

int ranks_of_host(const ProcessGroup& group) { return layout_of(group).local_size(); }

const ProcessGroup& GroupSplits::parts(const ProcessGroup& ranks, int size) {
  auto& own = parts_[{ranks.backend(), size}];
  if (!own) {
    Parts parts(static_cast<std::size_t>(ranks.size() / size));
    for (int rank = 0; rank < ranks.size(); ++rank)
      parts[static_cast<std::size_t>(rank / size)].push_back(rank);
    own = runtime::require_run(kCaller).split_group(ranks, parts, {});
  }
  return *own;
}

std::shared_ptr<const HostSplit> GroupSplits::hosts(const ProcessGroup& ranks) {
  auto& own = hosts_[ranks.backend()];
  if (!own) own = std::make_shared<HostSplit>(split_by_hosts(ranks));
  return own;
}

}  // namespace lockstep::fsdp
