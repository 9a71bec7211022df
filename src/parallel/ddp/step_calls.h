// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "ddp/buckets.h"
#include "modules/step_abort.h"
#include "trace/step_trace.h"

namespace lockstep::ddp {

// The calls of a step, which all ranks make in this order: the reduction of each bucket and, with
// find_unused_parameters, that of the used parameters. The reducer's lock protects it.
class StepCalls {
 public:
  // The arguments outlive it.
  StepCalls(Buckets& buckets, const ProcessGroup& group, const ReducerOptions& options);

  void set_hook(CommHook hook) { hook_ = std::move(hook); }
  const CommHook& hook() const { return hook_; }
  // Sees each bucket before its reduction starts; may be empty.
  using Observer = std::function<void(const Bucket&)>;
  void set_observer(Observer observer) { observer_ = std::move(observer); }

  // See Buckets::begin_step().
  void begin(const std::vector<std::size_t>& unused);
  // Starts the reductions of full buckets, up to the first that is not full.
  void start_full();
  // Starts the next reduction with a bucket full of `value` instead of gradients.
  void contribute(double value);
  bool all_started() const { return next_ == buckets_.all().size(); }
  // The number of buckets whose reductions have started.
  std::size_t started() const { return next_; }
  void reduce_used() { used_.reduce(group_, options_.where); }

  enum class Results : std::uint8_t { deliver, discard };  // whether they become gradients
  // Waits for all these calls. Returns whether the sum of bucket `watched` begins with NaN.
  bool wait(Results results, std::optional<std::size_t> watched);

  // Begins anew after a change of the parameters.
  void forget_used() { used_ = UsedParameters(buckets_.parameters().size(), buckets_.device()); }

  const Buckets& buckets() const { return buckets_; }
  const ProcessGroup& group() const { return group_; }
  const ReducerOptions& options() const { return options_; }
  modules::StepAbort& abort() { return abort_; }
  UsedParameters& used() { return used_; }
  tracing::StepClock& clock() { return clock_; }
  const tracing::StepClock& clock() const { return clock_; }
  tracing::StepTrace& trace() { return trace_; }

 private:
  BucketWork start(Bucket& bucket, const at::Tensor& buffer);
  BucketWork call_hook(Bucket& bucket, const at::Tensor& buffer) const;
  void finish_completed();
  void finish(Bucket& bucket);

  Buckets& buckets_;
  const ProcessGroup& group_;
  const ReducerOptions& options_;
  CommHook hook_;
  Observer observer_;
  modules::StepAbort abort_;
  UsedParameters used_;
  std::size_t next_ = 0;  // the first bucket whose reduction has not started
  tracing::StepClock clock_;
  tracing::StepTrace trace_;
};

}  // namespace lockstep::ddp
