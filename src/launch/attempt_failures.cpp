// SPDX-License-Identifier: BSD-3-Clause
#include "launch/attempt_failures.h"

#include <algorithm>
#include <utility>

namespace lockstep::launch {

void AttemptFailures::add(FailureReport report) {
  if (!first_) {
    first_ = std::move(report);
  } else if (is_doubted() && !is_consequence(report.stderr_tail)) {
    later_.push_back(std::exchange(first_, std::move(report))->first);
  } else {
    later_.push_back(report.first);
  }
}

std::optional<FailureReport> AttemptFailures::summary(const std::optional<FailureReport>& verdict) const {
  std::optional<FailureReport> failure = verdict ? verdict : first_;
  if (!failure) return std::nullopt;
  failure->later = later_;
  const bool is_here = first_ && failure->reason.empty() && failure->first.rank == first_->first.rank;
  if (first_ && !is_here) failure->later.insert(failure->later.begin(), first_->first);
  failure->stopped = stopped_;
  std::ranges::sort(failure->stopped);
  return failure;
}

}  // namespace lockstep::launch
