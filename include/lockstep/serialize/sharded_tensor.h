// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep {

/// A part of a tensor that this rank has. PyTorch: `torch.distributed._shard.sharded_tensor.Shard`.
struct Shard {
  at::Tensor tensor;
  std::vector<std::int64_t> shard_offsets;  ///< of its first element in the whole, one a dimension
};

/// A tensor of which every rank has parts of its own: one, several or none. Together they make up the whole,
/// each element once; the very same part may be on several ranks. PyTorch: `ShardedTensor`, and `DTensor`
/// placed by `Shard`, with one part a rank.
struct ShardedTensor {
  std::vector<std::int64_t> size;  ///< of the whole, the same on all ranks
  /// The same on all ranks. Not given: that of local_shards, or, where there are none, of other ranks'.
  std::optional<at::ScalarType> dtype = {};
  std::vector<Shard> local_shards = {};
};

}  // namespace lockstep
