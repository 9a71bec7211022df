// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <string_view>

#include <lockstep/serialize/value.h>

#include "serialize/pickle.h"

// Python's torch.distributed.tensor.DTensor in a file of torch.save, which holds the part of one rank.
namespace lockstep::serialize {

constexpr std::string_view kDTensor = "torch.distributed.tensor DTensor";

// The value of a DTensor from what pickles give it as its state; `value` returns the value of a node. A tensor
// if the part is the whole tensor, a ShardedTensor otherwise. Throws CheckpointError for placements that are
// neither Shard nor Replicate, and for a mesh that is described in an unknown way.
Value read_dtensor(const pickle::Pickle& pickle, pickle::Ref state,
                   const std::function<Value(pickle::Ref)>& value);

}  // namespace lockstep::serialize
