// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/serialize/value.h>

#include "checkpoint/distributed_table.h"
#include "checkpoint/flatten.h"

// Who writes what of a distributed checkpoint.
namespace lockstep::distributed_checkpoint {

/// What this rank has, for plan_save() on all: names, shapes and parts; where there are other ranks, `alone`
/// being false, also digests of what they should have alike. Throws CheckpointError naming the entry that no
/// such checkpoint can hold.
std::string describe(const std::vector<Leaf>& leaves, bool alone);

/// A piece of a tensor, or an object (piece 0), that one rank writes.
struct Assignment {
  std::size_t entry;
  std::size_t piece;
  std::size_t rank;
};

struct SavePlan {
  Entries entries;                      ///< places are still to be found
  std::vector<Assignment> assignments;  ///< in the order of the entries
};

/// The same on all ranks that have the same descriptions, those of rank 0, 1, ... What several ranks have is
/// written by the one that has least to write; where their contents differ, by the lowest, so that all such
/// are of one rank. Throws CheckpointError naming the entry whose parts overlap,
/// do not make up the whole, or differ among ranks.
SavePlan plan_save(const std::vector<std::string>& descriptions);

/// The data of a piece, `value` being what this rank has under the entry's name.
Value data_of(const Entry& entry, std::size_t piece, const Value& value);

}  // namespace lockstep::distributed_checkpoint
