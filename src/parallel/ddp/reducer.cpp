// SPDX-License-Identifier: BSD-3-Clause
#include "ddp/reducer.h"

#include <algorithm>
#include <array>

#include <ATen/ops/isnan.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/engine.h>

#include "base/throw_error.h"
#include "comm/announced_calls.h"
#include "graphs/graph_phase.h"
#include "intercept/nested_backward.h"
#include "optim/unaveraged.h"

namespace lockstep::ddp {

Reducer::Reducer(std::vector<TrainedParameter> parameters, ProcessGroup group, ReducerOptions options)
    : parameters_(std::move(parameters)),
      group_(std::move(group)),
      options_(std::move(options)),
      locations_(parameters_.size()),
      used_(parameters_.size(), parameters_.front().tensor.device()),
      abort_(group_),
      arrived_last_(static_cast<std::size_t>(group_.size()), 0) {
  forget_steps();
  if (options_.optimizer_in_backward) {
    for (const auto& parameter : parameters_) {
      optimizers_.push_back(options_.optimizer_in_backward({parameter.tensor}));
    }
  }
  renew_hooks();
  set_buckets(first_plan());
}

void Reducer::forget_steps() {
  step_ = {};
  claim_ = Claim::none;
  step_.ready.resize(parameters_.size());
  step_.is_local.resize(parameters_.size());
  learned_ = {};
  learned_.hook_counts.resize(parameters_.size());
  if (options_.static_graph) learned_.graph = Learned::Graph::first_step;
  dtypes_.clear();
  for (const auto& parameter : parameters_) dtypes_.push_back(parameter.tensor.scalar_type());
}

void Reducer::enter(Phase next) {
  using enum Step::Phase;
  constexpr auto phases = [](auto... all) { return ((1U << static_cast<unsigned>(all)) | ...); };
  constexpr std::array kNext{
      phases(forward, awaiting),                      // after idle
      phases(idle, awaiting),                         // after forward
      phases(forward, awaiting, backward),            // after awaiting
      phases(idle, awaiting, incomplete, finishing),  // after backward
      phases(backward),                               // after incomplete
      phases(idle, aborted),                          // after finishing
      phases(idle),                                   // after aborted
  };
  if ((kNext[static_cast<std::size_t>(step_.phase)] & phases(next)) == 0) {
    throw_error<Error>("{}: internal error: phase {} cannot follow phase {}", whoami(),
                       static_cast<int>(next), static_cast<int>(step_.phase));
  }
  step_.phase = next;
  note_claim();
}

void Reducer::note_claim() {
  const bool reduces = !in(Phase::idle) && (!in(Phase::forward) || step_.before_forward == Phase::awaiting);
  const bool is_meant = step_.local_forwards > 0 || step_.in_local_backward;
  claim_ = reduces ? Claim::reduced : is_meant ? Claim::local : Claim::none;
}

std::string Reducer::whoami() const {
  return fmt::format("rank {} of {}: DistributedDataParallel", group_.rank(), group_.size());
}

// The host's part of a step runs only while a GraphedStep captures it.
void Reducer::enter_graph(bool in_join) {
  const auto phase = graph_phase();
  if (phase == GraphPhase::none) return;
  const auto refuse = [](bool set, const char* what, const char* remedy) {
    if (set) refuse_in_graph(fmt::format("DistributedDataParallel with {}", what), remedy);
  };
  refuse(finds_unused(), "find_unused_parameters",
         "the host asks in every step which parameters were used; static_graph asks in the first only");
  refuse(options_.lazy_bucket_allocation, "lazy_bucket_allocation",
         "a graph needs the same memory in every step; leave the option out");
  refuse(!optimizers_.empty(), "optimizer_in_backward",
         "the order of steps depends on the speed of reductions; step after backward");
  refuse(options_.gradient_dtype.has_value() || options_.after_reduction, "mixed_precision",
         "parameters change their memory in every step; use Autocast");
  refuse(in_join, "join()",
         "the host asks in every step which ranks have data; give all ranks the same number of batches");
  refuse(phase == GraphPhase::capture && learned_.order == Learned::Order::known,
         "buckets that are rebuilt in this step", "raise warmup");
  if (phase != GraphPhase::warm_up) return;
  // The hooks' nodes run on the stream on which they were made. It must be the captured one, which the
  // warm-up already uses.
  const auto device = parameters_.front().tensor.device();
  const auto stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  if (hooks_stream_ == stream) return;
  renew_hooks();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (hooks_->node(i) == nullptr) continue;
    const auto made_on = hooks_->node(i)->stream();
    if (!made_on || *made_on == stream) continue;
    throw_error<Error>(
        "{}: a tensor of an earlier forward is alive, such as a loss or an output, and keeps the node that "
        "accumulates the gradient of {} on a stream that GraphedStep does not capture: drop it before the "
        "first call of the step",
        whoami(), parameters_[i].name);
  }
  hooks_stream_ = stream;
}

void Reducer::renew_hooks() {
  hooks_.reset();  // first: a tensor keeps the node of its gradient while anything holds it
  hooks_ = std::make_unique<GradientHooks>(
      parameters_, [this](std::size_t parameter) { on_gradient_ready(parameter); },
      [this] {
        const bool is_local = options_.sync != nullptr && !*options_.sync;
        return is_local ? std::max(claim_.load(), Claim::local) : claim_.load();
      });
}

bool Reducer::has_averaged_gradients() const {
  const std::lock_guard lock(mutex_);
  if (!in(Phase::idle) && !in(Phase::forward) && !in(Phase::awaiting)) return false;
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (step_.is_local[i] && parameters_[i].tensor.grad().defined()) return false;
  return true;
}

void Reducer::register_comm_hook(CommHook hook) {
  const std::lock_guard lock(mutex_);
  if (hook_) throw ArgumentError(whoami() + ": a communication hook is registered already");
  if (!hook) throw ArgumentError(whoami() + ": the communication hook is empty");
  if (!optimizers_.empty()) {
    throw ArgumentError(whoami() + ": optimizer_in_backward allows no communication hook");
  }
  if (!in(Phase::idle) && !in(Phase::forward)) {
    throw ArgumentError(whoami() + ": register the communication hook before the first forward");
  }
  const bool had_no_buckets = has_nothing_to_reduce();
  hook_ = std::move(hook);
  if (had_no_buckets) set_buckets(first_plan());
}

void Reducer::begin_local_forward() {
  const std::lock_guard lock(mutex_);
  ++step_.local_forwards;
  step_.in_local_backward = false;
  note_claim();
}

void Reducer::begin_forward() {
  const std::lock_guard lock(mutex_);
  step_.local_forwards = 0;
  step_.before_forward = step_.phase;
  enter(Phase::forward);
}

void Reducer::expect_backward(const std::vector<at::Tensor>& outputs) {
  const std::lock_guard lock(mutex_);
  enter(Phase::awaiting);
  step_.hook_calls = 0;
  step_.ready_count = 0;
  step_.ready.assign(parameters_.size(), false);
  if (learned_.order == Learned::Order::unknown) learned_.ready_order.clear();
  if (in_first_static_step()) {
    learned_.hook_counts.assign(parameters_.size(), 0);
  } else {
    step_.hooks_left = learned_.hook_counts;
  }
  if (finds_unused()) learned_.unused = find_unreachable(outputs, *hooks_);
  begin_buckets();
}

void Reducer::on_backward_begin() {
  const std::lock_guard lock(mutex_);
  begin_backward();
}

void Reducer::begin_backward() {
  if (!in(Phase::awaiting) && !in(Phase::incomplete)) return;
  enter(Phase::backward);
  intercept::in_outer_backward([this] {
    intercept::note_wrapped_backward();
    torch::autograd::Engine::get_default_engine().queue_callback([this] { on_backward_end(); });
  });
}

void Reducer::on_gradient_ready(std::size_t parameter) {
  const std::lock_guard lock(mutex_);
  if ((finds_unused() || in_first_static_step()) && parameters_[parameter].tensor.mutable_grad().defined()) {
    used_.mark(parameter);
  }
  // The new forward has thrown, and this backward belongs to the one before.
  if (in(Phase::forward) && step_.before_forward == Phase::awaiting) enter(Phase::awaiting);
  if (in(Phase::idle) || in(Phase::forward)) {
    take_local_gradient(parameter);
    return;
  }
  begin_backward();
  const bool is_first = step_.hook_calls++ == 0;
  if (in_first_static_step()) {
    ++learned_.hook_counts[parameter];
    return;
  }
  if (is_first) {
    for (const auto unused : learned_.unused) mark_ready(unused);
  }
  if (options_.static_graph) {
    count_hook_call(parameter);
    if (step_.hooks_left[parameter] > 0) return;
  }
  if (learns_order()) learned_.ready_order.push_back(static_cast<std::int64_t>(parameter));
  mark_ready(parameter);
}

void Reducer::count_hook_call(std::size_t parameter) {
  if (step_.hooks_left[parameter] == 0) {
    throw_error<Error>(
        "{}: the graph has changed: {} is used more often than in the first backward, which static_graph "
        "forbids; use find_unused_parameters instead",
        whoami(), parameters_[parameter].name);
  }
  --step_.hooks_left[parameter];
}

void Reducer::check_first_gradient(std::size_t parameter) const {
  if (!step_.ready[parameter]) return;
  throw_error<Error>(
      "{}: the gradient of {} became ready a second time before the backward was finished. Either backward "
      "was called twice on parts of one forward: sum the losses and call it once; or a module's parameters "
      "are used by several re-entrant backward passes (checkpoint): set static_graph if the graph is always "
      "the same{}",
      whoami(), parameters_[parameter].name,
      finds_unused()
          ? "; or forward() returned its tensors in a type that hides them: see lockstep::TensorVisitor"
          : "");
}

void Reducer::mark_ready(std::size_t parameter) {
  check_first_gradient(parameter);
  step_.ready[parameter] = true;
  ++step_.ready_count;
  if (buckets_.empty()) {
    if (!optimizers_.empty()) step_in_backward(parameter);
    return;
  }
  const auto location = locations_[parameter];
  auto& bucket = buckets_[location.bucket];
  copy_to_bucket(bucket, bucket.slots[location.slot]);
  if (--bucket.pending == 0) start_full_buckets();
}

void Reducer::step_in_backward(std::size_t parameter) {
  auto& gradient = parameters_[parameter].tensor.mutable_grad();
  if (!gradient.defined()) return;
  optimizers_[parameter]->step();
  gradient.reset();
}

int Reducer::divisor() {
  if (step_.divisor == 0) step_.divisor = divisor_source_ ? divisor_source_() : group_.size();
  return step_.divisor;
}

BucketWork Reducer::start_reduction(std::size_t index, const at::Tensor& buffer) {
  auto& bucket = buckets_[index];
  bucket.launched = clock_.launch();
  comm::announce(group_, {.kind = comm::Announcement::Kind::bucket, .count = std::int64_t(index)});
  bucket.event = comm::ProfilerEvent([&] { return description(bucket); });
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

void Reducer::start_full_buckets() {
  auto& next = step_.next_bucket;
  for (; next < buckets_.size() && buckets_[next].pending == 0; ++next) {
    auto& bucket = buckets_[next];
    if (bucket.skipped) continue;
    if (options_.batched_grad_copy) copy_all_to_bucket(bucket);
    bucket.work = start_reduction(next, bucket.flat);
  }
  if (finds_unused()) {
    if (next == buckets_.size()) used_.reduce(group_, options_.where);
  } else if (!optimizers_.empty()) {
    finish_completed_buckets();
  }
}

// So that optimizer_in_backward frees gradients early.
void Reducer::finish_completed_buckets() {
  for (std::size_t b = 0; b < step_.next_bucket; ++b) {
    auto& bucket = buckets_[b];
    if (bucket.finished || bucket.sparse || !bucket.work.is_ready()) continue;
    bucket.work.wait();
    bucket.event.end();
    trace_bucket(bucket);
    finish(bucket);
  }
}

void Reducer::on_backward_end() {
  const std::lock_guard lock(mutex_);
  if (!in(Phase::backward)) return;
  if (step_.hook_calls == 0) {
    enter(Phase::awaiting);
    return;
  }
  if (in_first_static_step()) {
    reduce_first_static_step();
  } else if (step_.ready_count < parameters_.size()) {
    enter(Phase::incomplete);  // the next forward throws, as in PyTorch
    return;
  }
  finish_backward();
}

// Only the end of the first backward of a static graph shows how often each parameter's hook is called.
void Reducer::reduce_first_static_step() {
  if (!buckets_.empty()) used_.reduce(group_, options_.where);
  learned_.unused.clear();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (learned_.hook_counts[i] == 0) learned_.unused.push_back(i);
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) mark_ready(i);
}

bool Reducer::was_used(std::size_t parameter) {
  return !(finds_unused() || options_.static_graph) || used_.used_anywhere(parameter);
}

bool Reducer::wait_for_reductions(Results results) {
  comm::announce(group_, {.kind = comm::Announcement::Kind::end_of_reductions});
  RECORD_USER_SCOPE("waiting for reductions");
  const auto announcing = announcing_bucket();
  bool announced = false;
  for (bool more = true; more;) {
    more = false;
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      auto& bucket = buckets_[b];
      if (bucket.finished) continue;
      bucket.work.advance();
      if (!bucket.work.is_done()) {
        more = true;
        continue;
      }
      bucket.event.end();
      if (announcing == b) announced = at::isnan(bucket.work.wait().narrow(0, 0, 1)).item<bool>();
      if (results == Results::discard) {
        bucket.finished = true;
        continue;
      }
      trace_bucket(bucket);
      finish(bucket);
    }
  }
  return announced;
}

void Reducer::finish_backward() {
  const auto listening = abort_.listen();
  enter(Phase::finishing);
  clock_.end_gradients();
  const bool announced = wait_for_reductions(Results::deliver);
  if (finds_unused() && !buckets_.empty()) used_.clear();
  abort_.throw_if_aborted();
  if (announced) {
    const auto reasons = abort_.exchange_reasons("");
    if (!reasons.empty()) enter(Phase::aborted);
    abort_.throw_if_any(reasons);
  }
  end_step();
}

void Reducer::end_step() {
  abort_.end_step();
  if (options_.after_reduction) options_.after_reduction();
  clock_.end_step();
  if (trace_.is_on()) {
    using Lane = tracing::StepTrace::Lane;
    trace_.add(Lane::compute, "forward", clock_.forward_begin(), clock_.forward_end());
    trace_.add(Lane::compute, "backward", clock_.forward_end(), clock_.gradients_end());
    trace_.add(Lane::compute, "waiting for reductions", clock_.gradients_end(),
               tracing::StepTrace::Clock::now());
    trace_.end_step();
  }
  if (const int last = abort_.last_to_issue(abort_.last_call()); last >= 0 && !buckets_.empty()) {
    ++arrived_last_[static_cast<std::size_t>(last)];
  }
  if (learned_.graph == Learned::Graph::fixed && learns_order()) {
    for (const auto unused : learned_.unused) {
      learned_.ready_order.push_back(static_cast<std::int64_t>(unused));
    }
  }
  if (learns_order() && learned_.ready_order.size() == parameters_.size()) {
    learned_.order = Learned::Order::known;
  }
  if (in_first_static_step()) learned_.graph = Learned::Graph::fixed;
  step_.is_local.assign(parameters_.size(), false);
  if (unaveraged_) {
    for (const auto& parameter : parameters_) optim::unmark_unless_changed(parameter.tensor);
  }
  enter(Phase::idle);
}

void Reducer::write_trace_if_complete() {
  const std::lock_guard lock(mutex_);
  if (trace_.is_complete()) trace_.write(group_, options_.where);
}

std::string Reducer::description(const Bucket& bucket) const {
  return fmt::format("bucket {} ({} bytes, {} first)", &bucket - buckets_.data(), bucket.bytes,
                     parameters_[bucket.slots.front().parameter].name);
}

void Reducer::trace_bucket(const Bucket& bucket) {
  if (!trace_.is_on() || bucket.skipped) return;
  trace_.add(tracing::StepTrace::Lane::communication, description(bucket), bucket.launched,
             tracing::StepTrace::Clock::now());
}

}  // namespace lockstep::ddp
