// SPDX-License-Identifier: BSD-3-Clause
#include "fsdp/use_plan.h"

#include <algorithm>
#include <utility>

namespace lockstep::fsdp {
namespace {

// A forward has fewer uses of groups. More are forwards without backward, whose order teaches nothing.
constexpr std::size_t kMostUses = 100'000;

}  // namespace

void UsePlan::use(std::size_t group, bool learns) {
  current_ = group;
  if (!learns || order_.size() >= kMostUses) return;
  ++uses_[group].now;
  order_.push_back(group);
}

std::optional<std::size_t> UsePlan::next(Pass pass) const {
  const auto& learned = last_order_[pass];
  // Where this pass is in the learned order.
  const auto here = std::min(order_.size(), learned.size());
  if (here == 0 || learned[here - 1] != current_ || here == learned.size()) return std::nullopt;
  return learned[here];
}

void UsePlan::end(Pass pass) {
  last_order_[pass] = std::exchange(order_, {});
  for (auto& uses : uses_) uses.last[pass] = std::exchange(uses.now, 0);
  current_.reset();
}

}  // namespace lockstep::fsdp
