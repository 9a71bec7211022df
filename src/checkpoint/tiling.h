// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include "checkpoint/distributed_table.h"

namespace lockstep::distributed_checkpoint {

/// Of a tensor of these sizes. Throws CheckpointError when that is no number.
std::int64_t element_count(const Sizes& sizes);

/// Whether the pieces have each element of the whole once. They must lie within it. In time proportional to
/// their number, and little more, whatever they are. Throws CheckpointError for tensors that are split along
/// more than 12 dimensions, or into more parts than 2^24 divided by 2 for each of these.
bool is_tiling(const Sizes& whole, const std::vector<Piece>& pieces);

/// What is wrong with pieces that are no tiling: which two overlap, or how much is missing.
std::string tiling_problem(const Sizes& whole, const std::vector<Piece>& pieces);

/// Whether they have an element in common.
bool overlap(const Sizes& offsets, const Sizes& sizes, const Piece& piece);

}  // namespace lockstep::distributed_checkpoint
