// SPDX-License-Identifier: BSD-3-Clause
#include "training/equal_numbers.h"

#include <bit>
#include <functional>
#include <iterator>

#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>

#include "base/throw_error.h"
#include "comm/group_state.h"

namespace lockstep::training {

void check_equal_numbers(const Scalars& numbers, const std::optional<ProcessGroup>& group) {
  if (!group || numbers.empty()) return;
  std::vector<std::int64_t> own;
  for (const auto& [name, value] : numbers)
    own.push_back(std::bit_cast<std::int64_t>(value + 0.0) ^
                  static_cast<std::int64_t>(std::hash<std::string>()(name)));
  const auto bits = at::tensor(own, at::kLong).to(comm::device_for_objects(*group));
  // The complement's maximum is the minimum's complement.
  auto most = at::cat({bits, bits.bitwise_not()});
  group->all_reduce(most, ReduceOp::MAX);
  const auto count = bits.size(0);
  const auto differs = most.slice(0, 0, count).ne(most.slice(0, count).bitwise_not()).cpu();
  for (std::int64_t i = 0; i < count; ++i) {
    if (!differs[i].item<bool>()) continue;
    const auto& [name, value] = *std::next(numbers.begin(), i);
    throw_error<DesyncError>(
        "rank {} of {}: Trainer: the ranks' validations differ in {}, here {}; reduce it over the ranks, "
        "e.g. "
        "by a metric of lockstep::metrics or reduce_value()",
        group->rank(), group->size(), name, value);
  }
}

}  // namespace lockstep::training
