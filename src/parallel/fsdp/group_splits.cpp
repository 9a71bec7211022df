// SPDX-License-Identifier: BSD-3-Clause
#include "fsdp/group_splits.h"

#include <algorithm>
#include <utility>

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
  HostSplit groups{.host = run.split(group, hosts), .lane = run.split(group, lanes), .lane_ranks = {}};
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
  const auto is_it = [&](const auto& each) { return each.of == ranks.backend() && each.own.size() == size; };
  const auto earlier = std::ranges::find_if(parts_, is_it);
  if (earlier != parts_.end()) return earlier->own;
  Parts parts(static_cast<std::size_t>(ranks.size() / size));
  for (int rank = 0; rank < ranks.size(); ++rank)
    parts[static_cast<std::size_t>(rank / size)].push_back(rank);
  parts_.push_back({ranks.backend(), runtime::require_run(kCaller).split(ranks, parts)});
  return parts_.back().own;
}

std::shared_ptr<const HostSplit> GroupSplits::hosts(const ProcessGroup& ranks) {
  const auto is_it = [&](const auto& each) { return each.of == ranks.backend(); };
  const auto earlier = std::ranges::find_if(hosts_, is_it);
  if (earlier != hosts_.end()) return earlier->own;
  hosts_.push_back({ranks.backend(), std::make_shared<HostSplit>(split_by_hosts(ranks))});
  return hosts_.back().own;
}

}  // namespace lockstep::fsdp
