// SPDX-License-Identifier: BSD-3-Clause
#include <cstddef>
#include <set>

#include <lockstep/rendezvous/subgroups.h>

#include "base/caller_place.h"
#include "base/throw_error.h"
#include "runtime/run.h"

namespace lockstep {
namespace {

using Lists = std::vector<std::vector<int>>;

void check_lists(const Lists& lists, int own_rank) {
  if (lists.empty()) {
    throw_error<ArgumentError>(
        "rank {}: new_subgroups_by_enumeration: ranks_per_subgroup_list is empty; "
        "give the ranks of one group or more",
        own_rank);
  }
  std::set<int> seen;
  for (const auto& ranks : lists) {
    for (const int rank : ranks) {
      if (seen.insert(rank).second) continue;
      throw_error<ArgumentError>(
          "rank {}: new_subgroups_by_enumeration: rank {} is listed twice; list each rank in one group at most",
          own_rank, rank);
    }
  }
}

}  // namespace

Subgroups new_subgroups(int group_size, const GroupOptions& options, std::source_location where) {
  const CallerPlace place(where);
  const auto& world = runtime::require_run("lockstep::new_subgroups").world();
  if (group_size < 1 || world.size % group_size != 0) {
    throw_error<ArgumentError>(
        "rank {}: new_subgroups: group_size is {}; it must be 1 or more, and divide the number of ranks, {}",
        world.rank, group_size, world.size);
  }
  Lists lists(static_cast<std::size_t>(world.size / group_size));
  for (int rank = 0; rank < world.size; ++rank) {
    lists[static_cast<std::size_t>(rank / group_size)].push_back(rank);
  }
  return new_subgroups_by_enumeration(lists, options, where);
}

Subgroups new_subgroups_by_enumeration(const Lists& ranks_per_subgroup_list, const GroupOptions& options,
                                       std::source_location where) {
  const CallerPlace place(where);
  auto& run = runtime::require_run("lockstep::new_subgroups_by_enumeration");
  check_lists(ranks_per_subgroup_list, run.world().rank);
  std::vector<ProcessGroup> all;
  for (const auto& ranks : ranks_per_subgroup_list) all.push_back(run.new_group(ranks, options));
  auto own = all.front();
  for (const auto& group : all) {
    if (group) own = group;
  }
  return {std::move(own), std::move(all)};
}

}  // namespace lockstep
