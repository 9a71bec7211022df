// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include <lockstep/checkpoint/training_state.h>
#include <lockstep/serialize/value.h>

namespace lockstep::training {

// The state of a rank at a commit, by part of the TrainingState.
struct CommitParts {
  Dict own;  // what no other rank has
  Dict
      common;  // what every rank has: parameters that a DistributedDataParallel averages, and the optimizers of only such ones
};

// `complete`: TrainingStateAccess::own_state_dict() of `state`. Its tensors are shared. Buffers are the rank's own: those of
// BatchNorm differ between two broadcasts.
CommitParts divided(const TrainingState& state, const Dict& complete);
// The inverse of divided(), but for the order of the entries.
Dict joined(CommitParts parts);

// The BucketOrder of each DistributedDataParallel in the modules of `state`.
std::vector<Value> bucket_orders(const TrainingState& state);
void restore_bucket_orders(const TrainingState& state, const std::vector<Value>& orders);

}  // namespace lockstep::training
