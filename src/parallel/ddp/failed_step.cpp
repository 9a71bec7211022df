// SPDX-License-Identifier: BSD-3-Clause
#include "ddp/failed_step.h"

#include <limits>

#include <lockstep/base/log.h>

#include "base/throw_error.h"
#include "graphs/graph_phase.h"

namespace lockstep::ddp {

constexpr const char* kExceptionReason = "its last step was ended by an exception";

void FailedStep::check_recoverable() const {
  if (group_.size() == 1 || (abort_.is_local() && no_recovery_ == nullptr) || can_report()) return;
  abort_.abort(kExceptionReason, true);
  throw_error<Error>(
      "{}: the last step was ended by an exception, and the ranks cannot continue {}: end the run and resume "
      "from a checkpoint",
      ddp_on_rank(group_),
      no_recovery_ == nullptr ? "with ranks on several hosts"
                              : std::string("with ") + name_of(no_recovery_->option));
}

void FailedStep::recover(bool in_first_static_step) {
  abort_.abort(kExceptionReason, false);
  report_failure(kExceptionReason, in_first_static_step);
}

std::vector<std::string> FailedStep::report_failure(const std::string& reason, bool in_first_static_step) {
  const auto listening = abort_.listen();
  const auto reporting = can_report() ? reporting_bucket() : std::nullopt;
  if (in_first_static_step && calls_.started() == 0) calls_.reduce_used();
  while (!calls_.all_started())
    calls_.contribute(reporting == calls_.started() ? std::numeric_limits<double>::quiet_NaN() : 0);
  calls_.wait(StepCalls::Results::discard, std::nullopt);
  if (in_first_static_step) calls_.used().clear();
  return reporting ? abort_.exchange_reasons(reason) : std::vector<std::string>{};
}

std::optional<std::size_t> FailedStep::reporting_bucket() const {
  const bool in_gradients = !abort_.is_local() && group_.size() > 1 && !calls_.hook() &&
                            no_recovery_ == nullptr && buckets_.device().is_cpu() &&
                            graph_phase() == GraphPhase::none;
  if (!in_gradients) return std::nullopt;
  for (std::size_t b = buckets_.all().size(); b-- > 0;) {
    const auto& bucket = buckets_.all()[b];
    if (!bucket.sparse && !bucket.skipped && bucket.numel > 0) return b;
  }
  return std::nullopt;
}

bool FailedStep::can_report() const {
  const auto bucket = reporting_bucket();
  return bucket && *bucket >= calls_.started();
}

void FailedStep::throw_incomplete(const std::string& names, bool in_first_static_step) {
  const auto reason = "parameters that took no part in its last backward: " + names;
  const auto message = fmt::format(
      "{}: these parameters took no part in the last backward, so its gradients were not averaged: {}. Set "
      "find_unused_parameters if that differs from step to step, static_graph if it is always so, or call "
      "requires_grad_(false) on those that never do before wrapping the module. The same on the other ranks:",
      ddp_on_rank(group_), names);
  if (group_.size() == 1) throw Error(message + " there are none");
  if (!can_report()) {
    abort_.abort(reason, true);
    throw Error(message + abort_.reasons_of_others());
  }
  log(LogLevel::warning, message + " not known yet");
  throw Error(message + abort_.to_lines(report_failure(reason, in_first_static_step)));
}

}  // namespace lockstep::ddp
