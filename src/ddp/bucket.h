// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include <lockstep/comm/process_group.h>

#include "ddp/bucket_plan.h"

namespace lockstep::ddp {

// The gradients of some parameters in one flat tensor.
struct Bucket {
  struct Slot {
    std::size_t parameter = 0;
    at::Tensor view = {};  // of the flat tensor's memory, in the parameter's shape; no autograd view
  };

  at::Tensor flat = {};
  std::vector<Slot> slots = {};
  std::size_t pending = 0;  // gradients still missing in this backward
  Work work = {};
};

// In the memory that the group's backend likes best (its allocateTensor) where it has such.
std::vector<Bucket> make_buckets(const BucketPlan& plan, const std::vector<NamedTensor>& parameters,
                                 const ProcessGroup& group);

}  // namespace lockstep::ddp
