// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <source_location>
#include <vector>

#include <lockstep/comm/process_group.h>

#include "modules/named_tensors.h"

// The calls that Python's DistributedDataParallel makes beside its reductions. In a group with Python ranks
// (comm::has_python_ranks()), C++ ranks make the same calls with the same tensors in place of their own.
namespace lockstep::modules {

// Throws DesyncError unless the trained parameters of this rank have the number, the shapes and the strides
// of rank 0's. PyTorch: `_verify_param_shape_across_processes`.
void verify_with_python(const ProcessGroup& group, const std::vector<NamedTensor>& trained,
                        std::source_location where);

// As broadcast_from(). PyTorch: `_broadcast_coalesced`.
void broadcast_with_python(const ProcessGroup& group, int source, const std::vector<NamedTensor>& tensors,
                           std::source_location where);

// The buckets of rank 0, [bucket]: indices of parameters. PyTorch: `Reducer::sync_bucket_indices`.
std::vector<std::vector<std::size_t>> plan_of_rank_0(const ProcessGroup& group,
                                                     const std::vector<std::vector<std::size_t>>& own,
                                                     c10::Device device, std::source_location where);

}  // namespace lockstep::modules
