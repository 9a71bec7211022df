// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <vector>

#include "ddp/trained_parameters.h"

namespace lockstep::ddp {

// [b] = indices of the parameters in bucket b, in the order in which buckets are reduced.
using BucketPlan = std::vector<std::vector<std::size_t>>;

// Size limits in bytes of the first, second, ... bucket; the last holds for the rest.
struct BucketLimits {
  std::vector<std::size_t> initial;
  std::vector<std::size_t> rebuilt;
};

// Before the order of gradients is known: parameters in their order, the last ones' bucket first.
BucketPlan initial_plan(const std::vector<TrainedParameter>& parameters,
                        const std::vector<std::size_t>& limits);

// By the order in which gradients became ready.
BucketPlan plan_by_arrival(const std::vector<TrainedParameter>& parameters,
                           const std::vector<std::int64_t>& arrival, const std::vector<std::size_t>& limits);

}  // namespace lockstep::ddp
