// SPDX-License-Identifier: BSD-3-Clause
#include "training/equal_numbers.h"

#include <bit>
#include <functional>
#include <iterator>

#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <fmt/ranges.h>

#include "base/throw_error.h"
#include "comm/group_state.h"

namespace lockstep::training {

namespace {

// Where the ranks' numbers differ; as many on each rank.
at::Tensor differences(const std::vector<std::int64_t>& own, const ProcessGroup& group) {
  const auto bits = at::tensor(own, at::kLong).to(comm::device_for_objects(group));
  // The complement's maximum is the minimum's complement.
  auto most = at::cat({bits, bits.bitwise_not()});
  group.all_reduce(most, ReduceOp::MAX);
  const auto count = bits.size(0);
  return most.slice(0, 0, count).ne(most.slice(0, count).bitwise_not()).cpu();
}

void check_equal_names(const Scalars& numbers, const ProcessGroup& group) {
  std::string names;
  for (const auto& [name, value] : numbers) names += (names.empty() ? "" : ", ") + name;
  const auto hash = static_cast<std::int64_t>(std::hash<std::string>()(names));
  if (!differences({hash}, group).item<bool>()) return;
  std::vector<std::string> all;
  for (const auto& its : group.all_gather_object(names))
    all.push_back(fmt::format("rank {}: {}", all.size(), its.empty() ? "none" : its));
  throw_error<DesyncError>("rank {} of {}: Trainer: the ranks' validations return different numbers; {}",
                           group.rank(), group.size(), fmt::join(all, "; "));
}

}  // namespace

void check_equal_numbers(const Scalars& numbers, const std::optional<ProcessGroup>& group) {
  if (!group) return;
  check_equal_names(numbers, *group);
  if (numbers.empty()) return;
  std::vector<std::int64_t> own;
  for (const auto& [name, value] : numbers) own.push_back(std::bit_cast<std::int64_t>(value + 0.0));
  const auto differs = differences(own, *group);
  for (std::int64_t i = 0; i < differs.size(0); ++i) {
    if (!differs[i].item<bool>()) continue;
    const auto& [name, value] = *std::next(numbers.begin(), i);
    throw_error<DesyncError>(
        "rank {} of {}: Trainer: the ranks' validations differ in {}, here {}; reduce it over the ranks, "
        "e.g. by a metric of lockstep::metrics or reduce_value()",
        group->rank(), group->size(), name, value);
  }
}

}  // namespace lockstep::training
