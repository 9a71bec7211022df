// SPDX-License-Identifier: BSD-3-Clause

// The part of the reducer that makes a step's calls without its gradients: after a step that went wrong, and
// for ranks that have no data left.
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>

#include "ddp/reducer.h"

namespace lockstep::ddp {

void Reducer::settle(bool reduces, bool in_join) {
  const std::lock_guard lock(mutex_);
  if (trace_.is_due() && !in_join) trace_.write(group_, options_.where);
  const bool broken = expecting_ && started_ && (end_queued_ || failed_);
  // Where the others cannot be told, a forward that threw is as in PyTorch: it has done nothing.
  if (in_forward_ && !trouble_.tells_others()) in_forward_ = false;
  if (in_forward_) begin_buckets();  // none of its calls has been made
  if (in_forward_ || broken) {
    recover();
  } else if (reduces && expecting_ && started_) {
    throw_unused();
  }
}

void Reducer::refuse_to_recover() {
  const bool told = trouble_.tells_others();
  if (group_.size() == 1 || (told && options_.no_recovery.empty())) return;
  const auto why = options_.no_recovery.empty() ? std::string("with ranks on several hosts")
                                                : "with " + options_.no_recovery;
  trouble_.give_up("its last step was ended by an exception", true);
  throw Error(
      fmt::format("{}: the last step was ended by an exception, after which the ranks cannot go on {}: end "
                  "the run, and go on "
                  "from a checkpoint",
                  whoami(), why));
}

// The calls that the other ranks wait for are made, with zeros, and nothing comes of them.
void Reducer::recover() {
  refuse_to_recover();
  in_forward_ = false;
  expecting_ = false;
  end_queued_ = false;
  failed_ = false;
  if (options_.after_reduction) options_.after_reduction();
  if (bypasses()) return;
  trouble_.give_up("its last step was ended by an exception", false);
  if (in_first_static() && next_bucket_ == 0) used_.reduce(group_, options_.where);
  const GroupTrouble::Listening listening(trouble_);
  start_rest_with_zeros();
  wait_for_all(false);
  if (finds_unused() || in_first_static()) used_.clear();
  trouble_.end_step();
  for (auto& bucket : buckets_) {
    if (bucket.flat.defined() && !bucket.sparse) bucket.flat.zero_();
  }
}

void Reducer::start_rest_with_zeros() {
  for (; next_bucket_ < buckets_.size(); ++next_bucket_) {
    auto& bucket = buckets_[next_bucket_];
    if (!bucket.skipped) bucket.work = start(next_bucket_, zeros_of(bucket, parameters_, group_));
    if (finds_unused() && next_bucket_ + 1 == buckets_.size()) used_.reduce(group_, options_.where);
  }
}

void Reducer::throw_unused() {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!ready_[i]) names.push_back(parameters_[i].name);
  }
  const auto own = fmt::format("{}", fmt::join(names, ", "));
  trouble_.give_up("parameters that took no part in its last backward: " + own, true);
  throw Error(fmt::format(
      "{}: these parameters took no part in the last backward, so its gradients were not averaged: {}. Set "
      "find_unused_parameters if that differs from step to step, static_graph if it is always so, or call "
      "requires_grad_(false) on those that never do before wrapping the module. The same on the other "
      "ranks:{}",
      whoami(), own, group_.size() > 1 ? trouble_.reasons_of_others() : " there are none"));
}

void Reducer::shadow_backward() {
  const std::lock_guard lock(mutex_);
  if (in_first_static()) {
    const std::string reason = "it has no data for the first step of a static graph";
    trouble_.give_up(reason, true);
    throw Error(fmt::format("{}: {}, so it cannot follow the others; give each rank at least one batch",
                            whoami(), reason));
  }
  const GroupTrouble::Listening listening(trouble_);
  begin_buckets();
  start_rest_with_zeros();
  wait_for_all(false);
  if (finds_unused()) used_.clear();
  trouble_.end_step();
  if (trace_.is_on()) trace_.end_step();  // as on the ranks that have data
  if (learns_arrival()) {
    arrival_.resize(parameters_.size());
    std::iota(arrival_.begin(), arrival_.end(), 0);
    arrival_known_ = true;
  }
}

}  // namespace lockstep::ddp
