// SPDX-License-Identifier: BSD-3-Clause
#include "fsdp/gradient_reduction.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/ops/empty.h>

#include <lockstep/base/error.h>

#include "base/throw_error.h"
#include "comm/call_site.h"
#include "comm/mapped_memory.h"
#include "fsdp/step_calls.h"

namespace lockstep::fsdp {

// Other types than float32 and bfloat16 follow PyTorch, so that the bits are the same.
GradientReduction::Division GradientReduction::division() const {
  const auto dtype = reduce_dtype();
  const auto ranks = options_.shard_group.size() * (options_.replicas ? options_.replicas->size() : 1);
  const bool overflows = dtype != at::kFloat && dtype != at::kBFloat16;
  if (!divide_factor && ranks == 1) return {.op = ReduceOp::SUM};
  if (!divide_factor && !overflows) return {};
  const auto divisor = divide_factor.value_or(ranks);
  double before = 1;
  while (overflows && std::fmod(divisor, before) == 0 && divisor / before > before) before *= 2;
  return {.op = ReduceOp::SUM, .before = before, .after = divisor / before};
}

GradientReduction::GradientReduction(std::vector<ShardedParameter>& parameters, const GroupOptions& options,
                                     TrafficCount& traffic)
    : parameters_(parameters), options_(options), traffic_(traffic), placeholder_(at::empty({0})) {}

void GradientReduction::set_requires_sync(bool requires_sync) {
  requires_sync_ = requires_sync;
  if (!parameters_.front().shard.is_meta()) set_dtypes();
}

// Gradients that several passes add to are kept in reduce_dtype. Those of one pass are left in the dtype in
// which autograd computes and adds them, if reduce_dtype holds it exactly, as in PyTorch 2.15.
void GradientReduction::set_dtypes() {
  const auto dtype = reduce_dtype();
  visit([&](const auto&, const auto& whole, auto& own) {
    auto gradient = std::exchange(own, {});  // its dtype may be another one
    const bool is_kept = gradient.defined() && !is_placeholder(gradient);
    if (is_kept && gradient.scalar_type() != dtype) gradient = gradient.to(dtype);
    const bool is_wider = c10::isFloatingType(dtype) && c10::isFloatingType(whole.scalar_type()) &&
                          c10::elementSize(dtype) > whole.itemsize();
    const bool defers = is_wider && (requires_sync_ || is_kept);
    whole.set_grad_dtype(defers ? std::nullopt : std::optional(dtype));
    own = std::move(gradient);
  });
}

// Calls change(shard, the module's tensor, its gradient) for the parameters that exist.
template <typename Change>
void GradientReduction::visit(const Change& change) const {
  for (const auto& parameter : parameters_)
    if (const auto whole = parameter.lock_whole(); whole.defined())
      change(parameter.shard, whole, whole.mutable_grad());
}

bool GradientReduction::is_placeholder(const at::Tensor& gradient) const {
  return gradient.layout() == at::kStrided &&
         gradient.storage().unsafeGetStorageImpl() == placeholder_.storage().unsafeGetStorageImpl();
}

void GradientReduction::forget_ready() {
  is_ready_.assign(parameters_.size(), false);
  ready_ = 0;
}

void GradientReduction::begin_backward() {
  forget_ready();
  trained_ = static_cast<int>(std::ranges::count_if(parameters_, &ShardedParameter::trained));
  reduction_.reset();
  drop_zeroed();
  visit([&](const auto&, const auto&, auto& gradient) {
    if (gradient.defined() && is_placeholder(gradient)) gradient.reset();
  });
}

bool GradientReduction::add_ready(std::size_t index) {
  if (!is_ready_[index]) ++ready_;
  is_ready_[index] = true;
  return ready_ == trained_;
}

void GradientReduction::end_backward() {
  set_dtypes();
  note_gradients();
}

void GradientReduction::drop_zeroed() {
  visit([](const auto& shard, const auto&, const auto& gradient) {
    if (!gradient.defined()) shard.mutable_grad().reset();
  });
}

void GradientReduction::note_gradients() {
  visit([&](const auto& shard, const auto&, auto& gradient) {
    if (!gradient.defined() && shard.grad().defined()) gradient = placeholder_;
  });
}

void GradientReduction::zero() {
  partial_.reset();
  for (const auto& parameter : parameters_) parameter.shard.mutable_grad().reset();
  visit([](const auto&, const auto&, auto& gradient) { gradient.reset(); });
  set_dtypes();
}

void GradientReduction::forget_step() {
  reduction_.reset();
  forget_ready();
  zero();
}

void GradientReduction::fill_with_zeros() {
  for (const auto& parameter : parameters_) {
    if (const auto gradient = parameter.shard.grad(); gradient.defined()) gradient.zero_();
  }
}

void GradientReduction::divide(double divisor) {
  for (const auto& parameter : parameters_)
    if (parameter.shard.grad().defined()) parameter.shard.mutable_grad().div_(divisor);
}

at::ScalarType GradientReduction::reduce_dtype() const {
  return options_.mp_policy.reduce_dtype.value_or(parameters_.front().shard.scalar_type());
}

GradientReduction::Reduction GradientReduction::take(StepCalls& calls) {
  Reduction taken;
  if (!requires_sync_) return taken;
  finish(calls);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto whole = parameters_[i].lock_whole();
    if (!parameters_[i].trained || !whole.defined() || !whole.grad().defined()) continue;
    const auto gradient = std::exchange(whole.mutable_grad(), {});
    if (gradient.layout() != at::kStrided) {
      throw_error<ArgumentError>(
          "the gradient of {} is sparse, which fully_shard() cannot reduce; construct the embedding without "
          "sparse(true)",
          parameters_[i].name);
    }
    taken.parameters.push_back(i);
    taken.gradients.push_back(gradient.contiguous());
  }
  forget_ready();
  return taken;
}

void GradientReduction::pack(Reduction& reduction) const {
  const auto& group = options_.shard_group;
  std::int64_t numel = 0;
  for (const auto index : reduction.parameters) numel += parameters_[index].padded_shard_numel();
  const auto options = reduction.gradients.front().options().dtype(reduce_dtype());
  reduction.input = comm::memory_for_calls(group, numel * group.size(), options);
  reduction.output = at::empty({numel}, options);
  const auto flat = reduction.input.view({group.size(), numel});
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < reduction.gradients.size(); ++i) {
    const auto& parameter = parameters_[reduction.parameters[i]];
    fsdp::pack(reduction.gradients[i], parameter, flat, offset);
    reduction.gradients[i].reset();
    offset += parameter.padded_shard_numel();
  }
}

void GradientReduction::launch(Reduction reduction, StepCalls& calls) {
  reduction.division = division();
  if (reduction.division.before != 1) reduction.input.div_(reduction.division.before);
  reduction.launched = calls.record.launch();
  calls.run(options_.shard_group, [&] {
    const comm::CallSite site(options_.where, "gradients");
    reduction.work = options_.shard_group.reduce_scatter_tensor_async(reduction.output, reduction.input,
                                                                      reduction.division.op, options_.where);
  });
  reduction_ = std::move(reduction);
}

void GradientReduction::finish(StepCalls& calls) {
  if (!reduction_) return;
  auto reduction = std::move(*std::exchange(reduction_, std::nullopt));
  CallTimes call{.launched = reduction.launched, .waiting = CallTimes::Clock::now(), .done = {}};
  call.bytes = static_cast<std::int64_t>(reduction.input.nbytes());
  calls.run(options_.shard_group, [&] { reduction.work->wait(); });
  reduction.work.reset();
  reduction.input.reset();
  const bool is_complete = reduce_over_replicas(reduction, calls);
  call.done = CallTimes::Clock::now();
  calls.record.add_reduction(traffic_, call);
  if (!is_complete) return;
  if (reduction.division.after != 1) reduction.output.div_(reduction.division.after);
  accumulate(reduction);
}

// Whether the reduction is of all ranks; otherwise it waits for a later one.
bool GradientReduction::reduce_over_replicas(Reduction& reduction, StepCalls& calls) {
  if (!options_.replicas) return true;
  if (partial_ && partial_->parameters != reduction.parameters) {
    throw_error<ArgumentError>(
        "{}: this backward pass has gradients of other parameters than an earlier one, whose gradients "
        "set_requires_all_reduce(false) keeps from the replicas",
        describe(parameters_, options_));
  }
  if (partial_) reduction.output.add_(partial_->output);
  partial_.reset();
  if (!requires_all_reduce) {
    partial_ = reduction;
    return false;
  }
  calls.run(*options_.replicas, [&] {
    const comm::CallSite site(options_.where, "gradients of replicas");
    options_.replicas->all_reduce(reduction.output, reduction.division.op, options_.where);
  });
  return true;
}

void GradientReduction::accumulate(const Reduction& reduction) {
  const auto mean = reduction.output.to(parameters_.front().shard.options());
  std::int64_t offset = 0;
  for (const auto index : reduction.parameters) {
    const auto& parameter = parameters_[index];
    const auto part = mean.narrow(0, offset, parameter.padded_shard_numel());
    auto own = at::empty({0}, part.options());  // not a view, as in make_shard()
    own.set_(part.storage(), part.storage_offset(), parameter.shard.sizes());
    auto& gradient = parameter.shard.mutable_grad();
    if (gradient.defined()) {
      gradient.add_(own);
    } else {
      gradient = own;
    }
    offset += parameter.padded_shard_numel();
  }
}

void GradientReduction::add_to(MemoryCount& count) const {
  for (const auto& parameter : parameters_) count.gradients.add(parameter.shard.grad());
  visit([&](const auto&, const auto&, const auto& gradient) { count.gradients.add(gradient); });
  for (const auto* const reduction : {&reduction_, &partial_}) {
    if (!*reduction) continue;
    count.gradients.add((*reduction)->input);
    count.gradients.add((*reduction)->output);
  }
}

}  // namespace lockstep::fsdp
