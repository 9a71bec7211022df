// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ddp/option_rules.h"
#include "ddp/step_calls.h"

namespace lockstep::ddp {

// Note [Failed steps]
//
// A rank whose forward or backward threw owes the others the rest of the step's calls. Its next forward makes
// them with zeros and discards the results. The others throw DesyncError with its reason at the end of their
// backward:
//
//     failed rank    backward throws     next forward: zeros (or NaN) for the rest, then its step
//     other ranks    backward ....... waits for the rest ...... throws DesyncError, then the next step
//
// Results that arrive before the error have reached .grad already: sums that may lack the failed rank's part,
// and NaN in the last dense bucket where the report is in it. No optimizer should step with them, and
// zero_grad() drops them. The next forward completes what is missing, discards it and zeroes the buckets.
//
// How the others learn of the failure:
//
// - Ranks of one host see it in the node-local group (StepAbort), even while they wait.
// - Otherwise, with CPU tensors, the failed rank fills the last dense bucket with NaN instead of zeros, and
//   every rank reads NaN in the sum. Gradients may be NaN without a failure, so all ranks then exchange their
//   reasons, which are empty if no step failed. A good step makes no additional call.
// - With other devices (reading the sum would block the host), with a communication hook (which may keep the
//   NaN in its state), in a GraphedStep, or when all of the step's reductions have begun, the failure is
//   final.

// Completes the calls of a step that failed on this rank, and reports the failure to the others. The
// reducer's lock protects it.
class FailedStep {
 public:
  // The calls outlive it.
  explicit FailedStep(StepCalls& calls) : calls_(calls) {}

  // Throws Error, on this rank and the others, if an exception has ended the step and they cannot continue.
  void check_recoverable() const;
  // After an exception has ended the step on this rank.
  void recover(bool in_first_static_step);
  // Throws Error because parameters took no part in the last backward. `names`: theirs.
  [[noreturn]] void throw_incomplete(const std::string& names, bool in_first_static_step);

  // The bucket whose sum carries reports: the last one that can.
  std::optional<std::size_t> reporting_bucket() const;
  // Whether this bucket's reduction has still to start.
  bool can_report() const;
  // Completes the step's calls. Returns [rank] = its reason, empty for ranks that have not failed; nothing if
  // !can_report().
  std::vector<std::string> report_failure(const std::string& reason, bool in_first_static_step);

 private:
  StepCalls& calls_;
  const modules::StepAbort& abort_ = calls_.abort();
  const Buckets& buckets_ = calls_.buckets();
  const ProcessGroup& group_ = calls_.group();
  const ReducerOptions& options_ = calls_.options();
  const Exclusion* no_recovery_ = find_exclusion(features_of(options_, group_), Feature::recovery);
};

}  // namespace lockstep::ddp
