// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <vector>

#include <lockstep/launch/failure_report.h>

namespace lockstep::launch {

/// How ranks of this node failed in one attempt, and which of them is the cause.
class AttemptFailures {
 public:
  /// A rank failed by itself. The first one is the cause, unless it says itself that another one was gone
  /// before and that other one comes here next.
  void add(FailureReport report);
  /// A rank ended badly when it was to stop.
  void add_later(const RankExit& exit) { later_.push_back(exit); }
  /// A rank that the launcher's signal ended.
  void add_stopped(int rank) { stopped_.push_back(rank); }

  bool any() const { return first_.has_value(); }
  /// REQUIRES any().
  const FailureReport& first() const { return *first_; }
  /// Whether the first one may be the consequence of another.
  bool is_doubted() const { return first_ && is_consequence(first_->stderr_tail); }
  /// What to tell at the end, with what happened here: of the verdict of all nodes, else of first(); nullopt
  /// where nothing failed.
  std::optional<FailureReport> summary(const std::optional<FailureReport>& verdict) const;

 private:
  std::optional<FailureReport> first_;
  std::vector<RankExit> later_;
  std::vector<int> stopped_;
};

}  // namespace lockstep::launch
