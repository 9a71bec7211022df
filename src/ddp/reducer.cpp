// SPDX-License-Identifier: BSD-3-Clause
#include "ddp/reducer.h"

#include <algorithm>
#include <optional>

#include <ATen/ops/tensor.h>
#include <ATen/record_function.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/engine.h>

#include <lockstep/base/error.h>
#include <lockstep/device/graph_phase.h>

#include "ddp/graph_search.h"
#include "ddp/nested_backward.h"
#include "ddp/sparse_reduction.h"

namespace lockstep::ddp {

Reducer::Reducer(std::vector<TrainedParameter> parameters, ProcessGroup group, ReducerOptions options)
    : parameters_(std::move(parameters)),
      group_(std::move(group)),
      options_(std::move(options)),
      places_(parameters_.size()),
      used_(parameters_.size(), parameters_.front().tensor.device()),
      trouble_(group_),
      arrived_last_(static_cast<std::size_t>(group_.size()), 0),
      ready_(parameters_.size(), false),
      fires_(parameters_.size(), 0) {
  if (options_.optimizer_in_backward) {
    for (const auto& parameter : parameters_) {
      optimizers_.push_back(options_.optimizer_in_backward({parameter.tensor}));
    }
  }
  for (const auto& parameter : parameters_) dtypes_.push_back(parameter.tensor.scalar_type());
  renew_hooks();
  lay_out(first_plan());
}

BucketPlan Reducer::first_plan() const {
  // Of a graph that may change the order of gradients is never known.
  return initial_plan(parameters_, finds_unused() ? options_.limits.rebuilt : options_.limits.initial);
}

std::string Reducer::whoami() const {
  return fmt::format("rank {} of {}: DistributedDataParallel", group_.rank(), group_.size());
}

void Reducer::renew_hooks() {
  hooks_.reset();  // first: a tensor keeps the node of its gradient for as long as anybody holds it
  hooks_ = std::make_unique<GradientHooks>(parameters_,
                                           [this](std::size_t parameter) { on_gradient_ready(parameter); });
}

bool Reducer::has_averaged_gradients() const {
  const std::lock_guard lock(mutex_);
  return !local_only_ && !(expecting_ && started_);
}

void Reducer::lay_out(const BucketPlan& plan) {
  buckets_ = bypasses() ? std::vector<Bucket>{} : make_buckets(plan, parameters_, options_.gradient_dtype);
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    for (std::size_t s = 0; s < buckets_[b].slots.size(); ++s) {
      places_[buckets_[b].slots[s].parameter] = {b, s};
    }
    if (optimizers_.empty()) allocate(buckets_[b], parameters_, group_);
  }
  if (options_.gradient_as_bucket_view && optimizers_.empty()) move_gradients_into_buckets();
}

void Reducer::register_comm_hook(CommHook hook) {
  const std::lock_guard lock(mutex_);
  if (hook_) throw ArgumentError(whoami() + ": a communication hook is registered already");
  if (!hook) throw ArgumentError(whoami() + ": the communication hook is empty");
  if (!optimizers_.empty()) {
    throw ArgumentError(whoami() + ": optimizer_in_backward allows no communication hook");
  }
  if (expecting_)
    throw ArgumentError(whoami() + ": register the communication hook before the first forward");
  const bool had_no_buckets = bypasses();
  hook_ = std::move(hook);
  if (had_no_buckets) lay_out(first_plan());
}

std::vector<std::int64_t> Reducer::arrival_on_rank_0() const {
  // Ranks may see their gradients in different orders; one order must hold for all.
  auto order =
      at::tensor(arrival_, at::TensorOptions().dtype(at::kLong)).to(parameters_.front().tensor.device());
  group_.broadcast(order, 0, options_.where);
  order = order.to(at::kCPU);
  return {order.data_ptr<std::int64_t>(), order.data_ptr<std::int64_t>() + order.numel()};
}

void Reducer::rebuild_buckets_if_due() {
  const std::lock_guard lock(mutex_);
  if (rebuilt_ || !arrival_known_) return;
  rebuilt_ = true;
  // Not a part of the step, which a GraphedStep that warms up compares with the next one.
  std::optional<at::DisableRecordFunctionGuard> unseen;
  if (graph_phase() != GraphPhase::none) unseen.emplace();
  if (!bypasses()) lay_out(plan_by_arrival(parameters_, arrival_on_rank_0(), options_.limits.rebuilt));
}

void Reducer::begin_buckets() {
  divisor_ = 0;
  next_bucket_ = 0;
  for (auto& bucket : buckets_) {
    bucket.pending = bucket.slots.size();
    bucket.delivered = false;
    bucket.skipped = options_.skip_all_reduce_unused_params &&
                     std::ranges::all_of(bucket.slots, [this](const Bucket::Slot& slot) {
                       return std::ranges::binary_search(unused_, slot.parameter);
                     });
  }
}

void Reducer::expect_backward(const std::vector<at::Tensor>& outputs) {
  const std::lock_guard lock(mutex_);
  in_forward_ = false;
  expecting_ = true;
  started_ = false;
  end_queued_ = false;
  unused_marked_ = false;
  ready_count_ = 0;
  ready_.assign(parameters_.size(), false);
  if (!arrival_known_) arrival_.clear();
  if (in_first_static()) {
    fires_.assign(parameters_.size(), 0);
  } else {
    fires_left_ = fires_;
  }
  if (finds_unused()) unused_ = find_unreachable(outputs, *hooks_, parameters_.size());
  begin_buckets();
}

void Reducer::queue_end() {
  if (std::exchange(end_queued_, true)) return;
  in_outer_backward([this] {
    torch::autograd::Engine::get_default_engine().queue_callback([this] { on_backward_ends(); });
  });
}

void Reducer::on_backward_begins() {
  const std::lock_guard lock(mutex_);
  if (expecting_) queue_end();
}

void Reducer::on_gradient_ready(std::size_t parameter) {
  const std::lock_guard lock(mutex_);
  if ((finds_unused() || in_first_static()) && parameters_[parameter].tensor.mutable_grad().defined()) {
    used_.mark(parameter);
  }
  if (!expecting_) {
    local_only_ = true;
    return;
  }
  started_ = true;
  queue_end();
  if (in_first_static()) {
    ++fires_[parameter];
    return;
  }
  mark_unused_ready();
  if (options_.static_graph) {
    count_fire(parameter);
    if (fires_left_[parameter] > 0) return;
  }
  if (learns_arrival()) arrival_.push_back(static_cast<std::int64_t>(parameter));
  mark_ready(parameter);
}

void Reducer::count_fire(std::size_t parameter) {
  if (fires_left_[parameter] == 0) {
    throw Error(
        fmt::format("{}: the graph has changed: {} is used otherwise than in the first backward, which "
                    "static_graph rules out; use find_unused_parameters instead",
                    whoami(), parameters_[parameter].name));
  }
  --fires_left_[parameter];
}

void Reducer::mark_unused_ready() {
  if (std::exchange(unused_marked_, true)) return;
  for (const auto parameter : unused_) mark_ready(parameter);
}

void Reducer::refuse_second_gradient(std::size_t parameter) const {
  if (!ready_[parameter]) return;
  throw Error(
      fmt::format("{}: the gradient of {} became ready a second time before the backward was finished. "
                  "Either backward was "
                  "called twice on parts of one forward: sum the losses and call it once; or a module's "
                  "parameters are used "
                  "by several re-entrant backward passes (checkpoint): set static_graph if the graph is "
                  "always the same{}",
                  whoami(), parameters_[parameter].name,
                  finds_unused() ? "; or forward() returned its tensors in something that hides them: see "
                                   "lockstep::TensorVisitor"
                                 : ""));
}

void Reducer::mark_ready(std::size_t parameter) {
  refuse_second_gradient(parameter);
  ready_[parameter] = true;
  ++ready_count_;
  if (buckets_.empty()) {
    if (!optimizers_.empty() && parameters_[parameter].tensor.mutable_grad().defined()) {
      optimizers_[parameter]->step();
      parameters_[parameter].tensor.mutable_grad().reset();
    }
    return;
  }
  const auto place = places_[parameter];
  auto& bucket = buckets_[place.bucket];
  take_gradient(bucket, bucket.slots[place.slot]);
  if (--bucket.pending == 0) launch_full_buckets();
}

int Reducer::divisor() {
  if (divisor_ == 0) divisor_ = divisor_source_ ? divisor_source_() : group_.size();
  return divisor_;
}

BucketWork Reducer::start(std::size_t index, const at::Tensor& buffer) {
  auto& bucket = buckets_[index];
  bucket.launched = clock_.launch();
  if (hook_) {
    std::vector<GradBucket::Parameter> parameters;
    for (const auto& slot : bucket.slots) {
      const auto& parameter = parameters_[slot.parameter];
      parameters.push_back({parameter.name, parameter.tensor, slot.offset});
    }
    const bool is_last = std::all_of(buckets_.begin() + static_cast<std::ptrdiff_t>(index) + 1,
                                     buckets_.end(), [](const Bucket& later) { return later.skipped; });
    GradBucket seen(index, is_last, buffer, std::move(parameters), group_);
    return hook_(seen);
  }
  if (bucket.sparse) return sum_sparse(buffer, group_, options_.where);
  return {group_.all_reduce_async(buffer, ReduceOp::SUM, options_.where), buffer};
}

void Reducer::launch_full_buckets() {
  // In the buckets' order, whatever the order of gradients: it must be the same on all ranks.
  while (next_bucket_ < buckets_.size() && buckets_[next_bucket_].pending == 0) {
    auto& bucket = buckets_[next_bucket_];
    if (!bucket.skipped) {
      if (options_.batched_grad_copy) take_together(bucket);
      bucket.work = start(next_bucket_, bucket.flat);
    }
    ++next_bucket_;
  }
  if (finds_unused()) {
    if (next_bucket_ == buckets_.size()) used_.reduce(group_, options_.where);
    return;
  }
  if (optimizers_.empty()) return;
  for (std::size_t b = 0; b < next_bucket_; ++b) {
    auto& bucket = buckets_[b];
    if (bucket.delivered || bucket.sparse || !bucket.work.is_ready()) continue;
    bucket.work.wait();
    trace_bucket(bucket);
    deliver(bucket);
  }
}

void Reducer::on_backward_ends() {
  const std::lock_guard lock(mutex_);
  end_queued_ = false;
  if (!expecting_ || !started_) return;
  if (in_first_static()) {
    reduce_all_at_end();
  } else if (ready_count_ < parameters_.size()) {
    return;  // told at the next forward, as in PyTorch
  }
  finish_backward();
}

// After the first backward of a static graph: how often each parameter's gradient comes is known only now.
void Reducer::reduce_all_at_end() {
  if (!buckets_.empty()) used_.reduce(group_, options_.where);
  unused_.clear();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (fires_[i] == 0) unused_.push_back(i);
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) mark_ready(i);
}

bool Reducer::was_used(std::size_t parameter) {
  return !(finds_unused() || options_.static_graph) || used_.used_anywhere(parameter);
}

void Reducer::wait_for_all(bool and_deliver) {
  bool more = true;
  while (more) {
    more = false;
    for (auto& bucket : buckets_) {
      if (bucket.delivered) continue;
      bucket.work.advance();
      if (!bucket.work.is_done()) {
        more = true;
      } else if (and_deliver) {
        trace_bucket(bucket);
        deliver(bucket);
      } else {
        bucket.delivered = true;
      }
    }
  }
}

void Reducer::finish_backward() {
  const GroupTrouble::Listening listening(trouble_);
  failed_ = true;  // unless it comes to its end
  clock_.end_gradients();
  wait_for_all(true);
  if (finds_unused() && !buckets_.empty()) used_.clear();
  trouble_.throw_if_given_up();
  failed_ = false;
  end_step();
}

void Reducer::trace_bucket(const Bucket& bucket) {
  if (!trace_.is_on() || bucket.skipped) return;
  const auto index = &bucket - buckets_.data();
  trace_.add(StepTrace::Lane::communication,
             fmt::format("bucket {} ({} bytes, {} first)", index, bucket.bytes,
                         parameters_[bucket.slots.front().parameter].name),
             bucket.launched, StepTrace::Clock::now());
}

void Reducer::trace_step() {
  using Lane = StepTrace::Lane;
  trace_.add(Lane::compute, "forward", clock_.forward_begin(), clock_.forward_end());
  trace_.add(Lane::compute, "backward", clock_.forward_end(), clock_.gradients_end());
  trace_.add(Lane::compute, "waiting for reductions", clock_.gradients_end(), StepTrace::Clock::now());
  trace_.end_step();
}

void Reducer::end_step() {
  trouble_.end_step();
  if (options_.after_reduction) options_.after_reduction();
  clock_.end_step();
  if (trace_.is_on()) trace_step();
  if (const int last = trouble_.last_to_issue(trouble_.last_call()); last >= 0 && !buckets_.empty()) {
    ++arrived_last_[static_cast<std::size_t>(last)];
  }
  if (options_.static_graph && static_known_ && learns_arrival()) {
    for (const auto parameter : unused_) arrival_.push_back(static_cast<std::int64_t>(parameter));
  }
  if (arrival_.size() == parameters_.size()) arrival_known_ = true;
  static_known_ = options_.static_graph;
  local_only_ = false;
  expecting_ = false;
}

void Reducer::begin_forward() {
  const std::lock_guard lock(mutex_);
  in_forward_ = true;
}

}  // namespace lockstep::ddp
