// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <lockstep/serialize/value.h>

#include "checkpoint/distributed_metadata.h"
#include "checkpoint/flatten.h"

// Plans which rank writes which part of a distributed checkpoint.
namespace lockstep::distributed_checkpoint {

// Describes the entries of this rank for plan_save(): names, shapes and parts, and, unless `alone`, digests
// of values that must be equal on all ranks. Throws CheckpointError that names an entry that cannot be saved.
std::string describe(const std::vector<Leaf>& leaves, bool alone);

// A piece of a tensor, or an object (piece 0), and the rank that writes it.
struct Assignment {
  std::size_t entry;
  std::size_t piece;
  std::size_t rank;
};

struct SavePlan {
  Entries entries;                      // places are still to be found
  std::vector<Assignment> assignments;  // in the order of the entries
};

// The plan for the descriptions of rank 0, 1, ...; equal descriptions give equal plans. An entry of several
// ranks is written by the rank with the least to write or, if their contents differ, by the lowest rank, so
// that all such entries are from one rank. Throws CheckpointError that names an entry whose parts overlap,
// leave elements out, or differ between ranks.
SavePlan plan_save(const std::vector<std::string>& descriptions);

// The data of a piece of `value`, this rank's value of the entry.
Value data_of(const Entry& entry, std::size_t piece, const Value& value);

}  // namespace lockstep::distributed_checkpoint
