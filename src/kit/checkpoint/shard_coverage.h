// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/distributed_metadata.h"

namespace lockstep::distributed_checkpoint {

// The number of elements of a tensor of these sizes. Throws CheckpointError on overflow.
std::int64_t element_count(const Sizes& sizes);

// Whether the pieces, which must lie within the whole, cover each element exactly once. Takes time
// proportional to their number. Throws CheckpointError for tensors that are split along more than 12
// dimensions, or into 2^24 / 2^dimensions pieces or more.
bool covers(const Sizes& whole, const std::vector<Piece>& pieces);

// Describes why covers() is false: two pieces that overlap, or the number of missing elements.
std::string coverage_problem(const Sizes& whole, const std::vector<Piece>& pieces);

// Whether a part and a piece have an element in common.
bool overlap(const Sizes& offsets, const Sizes& sizes, const Piece& piece);

}  // namespace lockstep::distributed_checkpoint
