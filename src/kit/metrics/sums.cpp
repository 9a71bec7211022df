// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/zeros.h>

#include <lockstep/metrics/metrics.h>

#include "base/throw_error.h"
#include "comm/group_state.h"
#include "runtime/run.h"

namespace lockstep::metrics {

Sums::Sums(std::int64_t size, at::ScalarType dtype) : sums_(at::zeros({size}, dtype)) {}

void Sums::reset() { sums_ = at::zeros_like(sums_); }

void Sums::add(const at::Tensor& part) {
  if (sums_.device() != part.device()) sums_ = sums_.to(part.device());
  sums_ = sums_ + part.detach();  // copies of a metric share the former tensor
}

at::Tensor Sums::total(const std::optional<ProcessGroup>& process_group) const {
  const auto group = runtime::group_or_default(process_group, "metric");
  if (!group) return local();
  auto sums = sums_.to(comm::device_for_objects(*group), sums_.scalar_type(), /*non_blocking=*/false,
                       /*copy=*/true);
  group->all_reduce(sums);
  return sums.cpu();
}

Dict Sums::state_dict(const std::optional<ProcessGroup>& process_group) const {
  return {{"sums", total(process_group)}};
}

void Sums::load_state_dict(const Dict& state_dict, const std::optional<ProcessGroup>& process_group) {
  const auto& sums = state_dict.at("sums").as_tensor();
  if (sums.sizes() != sums_.sizes() || sums.scalar_type() != sums_.scalar_type())
    throw_error<CheckpointError>(
        "metric: 'sums' has {} elements of {} instead of {} of {}; it is the state of another metric",
        sums.numel(), c10::toString(sums.scalar_type()), sums_.numel(), c10::toString(sums_.scalar_type()));
  const auto group = runtime::group_or_default(process_group, "metric");
  reset();
  if (!group || group->rank() == 0) sums_.copy_(sums);
}

}  // namespace lockstep::metrics
