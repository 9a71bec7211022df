// SPDX-License-Identifier: BSD-3-Clause
#include "ddp/bucket_plan.h"

#include <algorithm>

#include <torch/csrc/distributed/c10d/reducer.hpp>

namespace lockstep::ddp {
namespace {

std::vector<bool> sparse_flags(const std::vector<TrainedParameter>& parameters) {
  std::vector<bool> flags;
  for (const auto& parameter : parameters) flags.push_back(parameter.sparse);
  return flags;
}

}  // namespace

BucketPlan initial_plan(const std::vector<TrainedParameter>& parameters,
                        const std::vector<std::size_t>& limits) {
  std::vector<at::Tensor> tensors;
  for (const auto& parameter : parameters) tensors.push_back(parameter.tensor);
  auto plan = std::get<0>(c10d::compute_bucket_assignment_by_size(tensors, limits, sparse_flags(parameters)));
  std::ranges::reverse(plan);
  return plan;
}

BucketPlan plan_by_arrival(const std::vector<TrainedParameter>& parameters,
                           const std::vector<std::int64_t>& arrival, const std::vector<std::size_t>& limits) {
  std::vector<at::Tensor> tensors;
  for (const auto index : arrival) tensors.push_back(parameters[static_cast<std::size_t>(index)].tensor);
  return std::get<0>(
      c10d::compute_bucket_assignment_by_size(tensors, limits, sparse_flags(parameters), arrival));
}

}  // namespace lockstep::ddp
