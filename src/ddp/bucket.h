// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <vector>

#include <lockstep/ddp/comm_hook.h>

#include "ddp/bucket_plan.h"

namespace lockstep::ddp {

// The gradients of some parameters in one flat tensor, or the sparse gradient of one.
struct Bucket {
  struct Slot {
    std::size_t parameter = 0;
    std::int64_t offset = 0;  // in the flat tensor
    at::Tensor view = {};     // of the flat tensor's memory, in the parameter's shape; no autograd view
  };

  bool sparse = false;
  std::int64_t numel = 0;
  std::int64_t bytes = 0;
  at::TensorOptions options = {};
  at::Tensor flat = {};  // undefined while it has no memory; where sparse, the gradient itself
  std::vector<Slot> slots = {};

  std::size_t pending = 0;  // gradients still missing in this backward
  bool skipped = false;     // in this backward, since no rank uses its parameters
  bool delivered = false;   // its result has been given to the gradients
  BucketWork work = {};
  std::chrono::steady_clock::time_point launched = {};
};

// `dtype`: of floating-point gradients, where it is not the parameters' own.
std::vector<Bucket> make_buckets(const BucketPlan& plan, const std::vector<TrainedParameter>& parameters,
                                 std::optional<at::ScalarType> dtype);

// Gives a dense bucket zeroed memory, of the kind that the group's backend likes best (its allocateTensor)
// where it has such; takes it away.
void allocate(Bucket& bucket, const std::vector<TrainedParameter>& parameters, const ProcessGroup& group);
// What a rank contributes that has no gradients.
at::Tensor zeros_of(const Bucket& bucket, const std::vector<TrainedParameter>& parameters,
                    const ProcessGroup& group);
void release(Bucket& bucket);

}  // namespace lockstep::ddp
