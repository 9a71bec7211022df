// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <source_location>
#include <utility>
#include <vector>

#include <lockstep/comm/process_group.h>
#include <lockstep/runtime/default_group.h>

namespace lockstep {

/// The group of this rank, which converts to false on a rank in none, and all groups in their order:
/// `const auto [own, all] = lockstep::new_subgroups(2)`.
using Subgroups = std::pair<ProcessGroup, std::vector<ProcessGroup>>;

/// Splits the ranks of the run into groups of `group_size` neighbours. Every rank calls it with the same
/// arguments. Throws ArgumentError unless the number of ranks is a multiple of `group_size`. PyTorch:
/// `torch.distributed.new_subgroups`.
Subgroups new_subgroups(int group_size, const GroupOptions& options = {},
                        std::source_location where = std::source_location::current());

/// Creates a group of each list of global ranks. Every rank of the run calls it with the same arguments. Throws
/// ArgumentError for no lists, and for a rank in two of them. PyTorch:
/// `torch.distributed.new_subgroups_by_enumeration`.
Subgroups new_subgroups_by_enumeration(const std::vector<std::vector<int>>& ranks_per_subgroup_list,
                                       const GroupOptions& options = {},
                                       std::source_location where = std::source_location::current());

}  // namespace lockstep
