// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <source_location>
#include <vector>

#include <lockstep/comm/process_group.h>

#include "ddp/bucket.h"

namespace lockstep::ddp {

// The calls that Python's DistributedDataParallel makes beside its reductions, for groups with Python ranks
// (ProcessGroupInfo::with_python): the same calls, with the same tensors.

// Throws DesyncError unless this rank's trained parameters have the number, the shapes and the strides of
// rank 0's. PyTorch: `_verify_param_shape_across_processes`.
void verify_with_python(const ProcessGroup& group, const std::vector<TrainedParameter>& parameters,
                        std::source_location where);

// The plan of rank 0. PyTorch: `Reducer::sync_bucket_indices`.
BucketPlan plan_of_rank_0(const ProcessGroup& group, const BucketPlan& own, c10::Device device,
                          std::source_location where);

}  // namespace lockstep::ddp
