// SPDX-License-Identifier: BSD-3-Clause
#include "ddp/step_calls.h"

#include <algorithm>

#include <ATen/ops/isnan.h>
#include <ATen/record_function.h>

#include "comm/announced_calls.h"
#include "comm/call_site.h"

namespace lockstep::ddp {

StepCalls::StepCalls(Buckets& buckets, const ProcessGroup& group, const ReducerOptions& options)
    : buckets_(buckets),
      group_(group),
      options_(options),
      abort_(group),
      used_(buckets.parameters().size(), buckets.device()) {}

void StepCalls::begin(const std::vector<std::size_t>& unused) {
  next_ = 0;
  buckets_.begin_step(unused);
}

BucketWork StepCalls::start(Bucket& bucket, const at::Tensor& buffer) {
  bucket.launched = clock_.launch();
  comm::announce(group_, {.kind = comm::Announcement::Kind::bucket, .count = std::int64_t(next_)});
  bucket.event = comm::ProfilerEvent([&] { return buckets_.description(bucket); });
  if (hook_) return call_hook(bucket, buffer);
  const comm::CallSite site(options_.where, kGradients, static_cast<int>(next_));
  if (bucket.sparse) return sum_sparse(buffer, group_, options_.where);
  return {group_.all_reduce_async(buffer, ReduceOp::SUM, options_.where), buffer};
}

BucketWork StepCalls::call_hook(Bucket& bucket, const at::Tensor& buffer) const {
  std::vector<GradBucket::Parameter> parameters;
  for (const auto& slot : bucket.slots) {
    const auto& parameter = buckets_.parameters()[slot.parameter];
    parameters.push_back({parameter.name, parameter.tensor, slot.offset});
  }
  const auto& all = buckets_.all();
  const bool is_last = std::all_of(all.begin() + static_cast<std::ptrdiff_t>(next_) + 1, all.end(),
                                   [](const Bucket& later) { return later.skipped; });
  GradBucket seen(next_, is_last, buffer, std::move(parameters), group_);
  return hook_(seen);
}

void StepCalls::start_full() {
  auto& all = buckets_.all();
  for (; next_ < all.size() && all[next_].pending == 0; ++next_) {
    auto& bucket = all[next_];
    if (bucket.skipped) continue;
    buckets_.copy_batch_in(bucket);
    if (observer_) observer_(bucket);
    bucket.work = start(bucket, bucket.flat);
  }
  if (options_.finds_unused()) {
    if (all_started()) reduce_used();
  } else if (options_.optimizer_in_backward) {
    finish_completed();
  }
}

void StepCalls::contribute(double value) {
  auto& bucket = buckets_.all()[next_];
  if (!bucket.skipped) {
    const auto values = zeros_of(bucket, buckets_.parameters(), group_);
    if (value != 0) values.fill_(value);
    bucket.work = start(bucket, values);
  }
  ++next_;
  if (options_.finds_unused() && all_started()) reduce_used();
}

// So that optimizer_in_backward frees gradients early.
void StepCalls::finish_completed() {
  for (std::size_t b = 0; b < next_; ++b) {
    auto& bucket = buckets_.all()[b];
    if (bucket.finished || bucket.sparse || !bucket.work.is_ready()) continue;
    bucket.work.wait();
    bucket.event.end();
    finish(bucket);
  }
}

void StepCalls::finish(Bucket& bucket) {
  if (trace_.is_on() && !bucket.skipped)
    trace_.add(tracing::StepTrace::Track::communication, buckets_.description(bucket), bucket.launched,
               tracing::StepTrace::Clock::now());
  buckets_.finish(bucket, used_);
}

bool StepCalls::wait(Results results, std::optional<std::size_t> watched) {
  comm::announce(group_, {.kind = comm::Announcement::Kind::end_of_reductions});
  RECORD_USER_SCOPE("waiting for reductions");
  bool is_nan = false;
  for (bool more = true; more;) {
    more = false;
    for (std::size_t b = 0; b < buckets_.all().size(); ++b) {
      auto& bucket = buckets_.all()[b];
      if (bucket.finished) continue;
      bucket.work.advance();
      if (!bucket.work.is_completed()) {
        more = true;
        continue;
      }
      bucket.event.end();
      if (watched == b) is_nan = at::isnan(bucket.work.wait().narrow(0, 0, 1)).item<bool>();
      if (results == Results::deliver) {
        finish(bucket);
      } else {
        bucket.finished = true;
      }
    }
  }
  if (options_.finds_unused() && !buckets_.all().empty()) used_.clear();
  return is_nan;
}

}  // namespace lockstep::ddp
