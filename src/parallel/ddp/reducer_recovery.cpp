// SPDX-License-Identifier: BSD-3-Clause

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
// and NaN in the last dense bucket where the announcement is in it. No optimizer should step with them, and
// zero_grad() drops them. The next forward completes what is missing, discards it and zeroes the buckets.
//
// How the others learn of the failure:
//
// - Ranks of one host see it in the node-local group (StepAbort), also while they wait.
// - Otherwise, with CPU tensors, the failed rank fills the last dense bucket with NaN instead of zeros, and
//   every rank reads NaN in the sum. The gradients may be NaN without a failure, so all ranks then exchange
//   their reasons, which are empty if no step failed. A good step makes no additional call.
// - With other devices (reading the sum would block the host), with a communication hook (which may keep the
//   NaN in its state), in a GraphedStep, or when all of the step's reductions have begun, the failure is
//   final.
#include <limits>

#include <fmt/ranges.h>

#include <lockstep/base/log.h>

#include "base/throw_error.h"
#include "ddp/reducer.h"
#include "graphs/graph_phase.h"

namespace lockstep::ddp {

constexpr const char* kExceptionReason = "its last step was ended by an exception";

bool Reducer::recover_if_failed() {
  const std::lock_guard lock(mutex_);
  const bool forward_failed = in(Phase::forward);
  if (forward_failed) {
    begin_buckets();                              // none of the step's calls has been made
    if (!abort_.is_local() && !can_announce()) {  // as in PyTorch, this forward has had no effect
      enter(step_.before_forward);
      return false;
    }
  }
  if (!forward_failed && !in(Phase::backward) && !in(Phase::finishing) && !in(Phase::aborted)) return false;
  recover();
  return true;
}

void Reducer::check_recoverable() {
  if (group_.size() == 1 || (abort_.is_local() && options_.no_recovery.empty()) || can_announce()) return;
  abort_.abort(kExceptionReason, true);
  throw_error<Error>(
      "{}: the last step was ended by an exception, and the ranks cannot continue {}: end the run and resume "
      "from a checkpoint",
      whoami(),
      options_.no_recovery.empty() ? "with ranks on several hosts" : "with " + options_.no_recovery);
}

void Reducer::recover() {
  const bool others_know = in(Phase::aborted);
  if (!others_know) check_recoverable();
  enter(Phase::idle);
  if (options_.after_reduction) options_.after_reduction();
  if (has_nothing_to_reduce()) return;
  if (!others_know) {
    abort_.abort(kExceptionReason, false);
    announce(kExceptionReason);
  }
  abort_.end_step();
  for (auto& bucket : buckets_) {
    if (bucket.flat.defined() && !bucket.sparse) bucket.flat.zero_();
  }
}

// Completes the step's calls. Returns the ranks' reasons if the gradients announce the failure.
std::vector<std::string> Reducer::announce(const std::string& reason) {
  const auto listening = abort_.listen();
  const bool announces = can_announce();
  if (in_first_static_step() && step_.next_bucket == 0) used_.reduce(group_, options_.where);
  complete_with(announces ? Contribution::announcement : Contribution::zeros);
  if (finds_unused() || in_first_static_step()) used_.clear();
  return announces ? abort_.exchange_reasons(reason) : std::vector<std::string>{};
}

void Reducer::contribute(std::size_t index, Contribution contribution) {
  auto& bucket = buckets_[index];
  if (!bucket.skipped) {
    const auto values = zeros_of(bucket, parameters_, group_);
    if (contribution == Contribution::announcement && announcing_bucket() == index) {
      values.fill_(std::numeric_limits<double>::quiet_NaN());
    }
    bucket.work = start_reduction(index, values);
  }
  if (finds_unused() && index + 1 == buckets_.size()) used_.reduce(group_, options_.where);
}

bool Reducer::complete_with(Contribution contribution) {
  for (auto& next = step_.next_bucket; next < buckets_.size(); ++next) contribute(next, contribution);
  return wait_for_reductions(Results::discard);
}

// The bucket whose sum carries announcements: the last one that can.
std::optional<std::size_t> Reducer::announcing_bucket() const {
  const bool in_gradients = !abort_.is_local() && group_.size() > 1 && !hook_ &&
                            options_.no_recovery.empty() && parameters_.front().tensor.is_cpu() &&
                            graph_phase() == GraphPhase::none;
  if (!in_gradients) return std::nullopt;
  for (std::size_t b = buckets_.size(); b-- > 0;) {
    if (!buckets_[b].sparse && !buckets_[b].skipped && buckets_[b].numel > 0) return b;
  }
  return std::nullopt;
}

bool Reducer::can_announce() const {
  const auto bucket = announcing_bucket();
  return bucket && *bucket >= step_.next_bucket;
}

void Reducer::check_last_backward() {
  const std::lock_guard lock(mutex_);
  if (!in(Phase::incomplete)) return;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!step_.ready[i]) names.push_back(parameters_[i].name);
  }
  const auto own = fmt::format("{}", fmt::join(names, ", "));
  const auto reason = "parameters that took no part in its last backward: " + own;
  const auto message = fmt::format(
      "{}: these parameters took no part in the last backward, so its gradients were not averaged: {}. Set "
      "find_unused_parameters if that differs from step to step, static_graph if it is always so, or call "
      "requires_grad_(false) on those that never do before wrapping the module. The same on the other ranks:",
      whoami(), own);
  if (group_.size() == 1) throw Error(message + " there are none");
  if (!can_announce()) {
    abort_.abort(reason, true);
    throw Error(message + abort_.reasons_of_others());
  }
  log(LogLevel::warning, message + " not known yet");
  throw Error(message + abort_.to_lines(announce(reason)));
}

}  // namespace lockstep::ddp
