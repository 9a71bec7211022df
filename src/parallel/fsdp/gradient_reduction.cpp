// SPDX-License-Identifier: BSD-3-Clause
#include <cmath>
#include <optional>
#include <utility>

#include <ATen/ops/empty.h>

#include <lockstep/base/error.h>

#include "base/throw_error.h"
#include "comm/mapped_memory.h"
#include "fsdp/parameter_group.h"
#include "fsdp/tree.h"

// Gradients of whole parameters become mean gradients of shards.
namespace lockstep::fsdp {
namespace {

// FP16 sums can overflow, so a part of the division comes before them. Other types than float32 and bfloat16
// follow PyTorch, so that the bits are the same.
struct Division {
  ReduceOp op = ReduceOp::AVG;
  double before = 1;
  double after = 1;
};

Division division(at::ScalarType dtype, int ranks, std::optional<double> factor) {
  const bool overflows = dtype != at::kFloat && dtype != at::kBFloat16;
  if (!factor && ranks == 1) return {.op = ReduceOp::SUM};
  if (!factor && !overflows) return {};
  const auto divisor = factor.value_or(ranks);
  double before = 1;
  while (overflows && std::fmod(divisor, before) == 0 && divisor / before > before) before *= 2;
  return {.op = ReduceOp::SUM, .before = before, .after = divisor / before};
}

}  // namespace

// Gradients that several passes add to are kept in reduce_dtype. Those of one pass are left in the dtype in
// which autograd computes and adds them, if reduce_dtype holds it exactly, as in PyTorch 2.15.
void ParameterGroup::set_gradient_dtypes() {
  const auto dtype = reduce_dtype();
  for (const auto& parameter : parameters_) {
    const auto whole = parameter.lock_whole();
    if (!whole.defined()) continue;
    auto gradient = std::exchange(whole.mutable_grad(), {});  // its dtype may be another one
    const bool is_kept = gradient.defined() && !is_placeholder(gradient);
    if (is_kept && gradient.scalar_type() != dtype) gradient = gradient.to(dtype);
    const bool is_wider = c10::isFloatingType(dtype) && c10::isFloatingType(whole.scalar_type()) &&
                          c10::elementSize(dtype) > whole.itemsize();
    const bool defers = is_wider && (requires_gradient_sync || is_kept);
    whole.set_grad_dtype(defers ? std::nullopt : std::optional(dtype));
    whole.mutable_grad() = std::move(gradient);
  }
}

bool ParameterGroup::is_placeholder(const at::Tensor& gradient) const {
  return gradient.layout() == at::kStrided &&
         gradient.storage().unsafeGetStorageImpl() == no_gradient_.storage().unsafeGetStorageImpl();
}

void ParameterGroup::begin_backward() {
  is_ready_.assign(parameters_.size(), false);
  ready_ = 0;
  reduction_.reset();
  drop_zeroed_gradients();
  for (auto& parameter : parameters_) {
    const auto whole = parameter.lock_whole();
    if (!whole.defined()) continue;
    auto& gradient = whole.mutable_grad();
    if (gradient.defined() && is_placeholder(gradient)) gradient.reset();
  }
}

void ParameterGroup::drop_zeroed_gradients() {
  for (auto& parameter : parameters_) {
    const auto whole = parameter.lock_whole();
    if (whole.defined() && !whole.mutable_grad().defined()) parameter.shard.mutable_grad().reset();
  }
}

void ParameterGroup::end_backward() {
  stays_whole = false;
  drop_prefetch();  // the optimizer changes the shards next
  if (reshard_after_backward) release();
  invalidate();
  set_gradient_dtypes();
  note_gradients();
}

void ParameterGroup::note_gradients() {
  for (const auto& parameter : parameters_) {
    const auto whole = parameter.lock_whole();
    if (!whole.defined() || whole.mutable_grad().defined()) continue;
    if (parameter.shard.grad().defined()) whole.mutable_grad() = no_gradient_;
  }
}

void ParameterGroup::zero_grad() {
  partial_.reset();
  for (auto& parameter : parameters_) {
    parameter.shard.mutable_grad().reset();
    if (const auto whole = parameter.lock_whole(); whole.defined()) whole.mutable_grad().reset();
  }
  set_gradient_dtypes();
}

void ParameterGroup::fill_gradients_with_zeros() {
  for (auto& parameter : parameters_) {
    if (const auto gradient = parameter.shard.grad(); gradient.defined()) gradient.zero_();
  }
}

at::ScalarType ParameterGroup::reduce_dtype() const {
  return options_.mp_policy.reduce_dtype.value_or(parameters_.front().shard.scalar_type());
}

at::Tensor ParameterGroup::take_gradient(ShardedParameter& parameter) {
  const auto whole = parameter.lock_whole();
  auto gradient = std::exchange(whole.mutable_grad(), {});
  if (gradient.layout() != at::kStrided) {
    throw_error<ArgumentError>(
        "the gradient of {} is sparse, which fully_shard() cannot reduce; construct the embedding without "
        "sparse(true)",
        parameter.name);
  }
  return gradient.contiguous();
}

bool ParameterGroup::has_gradient(const ShardedParameter& parameter) const {
  const auto whole = parameter.lock_whole();
  return parameter.trained && whole.defined() && whole.grad().defined();
}

void ParameterGroup::reduce() {
  if (!requires_gradient_sync) return;
  finish_reduction();
  Reduction reduction;
  std::vector<at::Tensor> gradients;
  std::int64_t numel = 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!has_gradient(parameters_[i])) continue;
    reduction.parameters.push_back(i);
    gradients.push_back(take_gradient(parameters_[i]));
    numel += parameters_[i].padded_shard_numel();
  }
  is_ready_.assign(parameters_.size(), false);
  ready_ = 0;
  if (gradients.empty()) return;
  tree_->before_reduction(*this);

  const auto& group = options_.shard_group;
  const auto dtype = reduce_dtype();
  const auto options = gradients.front().options().dtype(dtype);
  reduction.input = comm::memory_for_calls(group, numel * group.size(), options);
  reduction.output = at::empty({numel}, options);
  const auto flat = reduction.input.view({group.size(), numel});
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const auto& parameter = parameters_[reduction.parameters[i]];
    pack(gradients[i], parameter, flat, offset);
    gradients[i].reset();
    offset += parameter.padded_shard_numel();
  }
  if (reshard_after_backward && !stays_whole) release();

  const auto replicas = options_.replicas ? options_.replicas->size() : 1;
  const auto divided = division(dtype, group.size() * replicas, gradient_divide_factor);
  if (divided.before != 1) reduction.input.div_(divided.before);
  reduction.divisor = divided.after;
  reduction.launched = tree_->launch_reduction();
  tree_->run(group, [&] {
    reduction.work =
        group.reduce_scatter_tensor_async(reduction.output, reduction.input, divided.op, options_.where);
  });
  reduction_ = std::move(reduction);
}

void ParameterGroup::finish_reduction() {
  if (!reduction_) return;
  auto reduction = std::move(*std::exchange(reduction_, std::nullopt));
  CallTimes call{.launched = reduction.launched, .waiting = CallTimes::Clock::now(), .done = {}};
  call.bytes = static_cast<std::int64_t>(reduction.input.nbytes());
  tree_->run(options_.shard_group, [&] { reduction.work->wait(); });
  reduction.input.reset();
  const bool is_complete = reduce_over_replicas(reduction);
  call.done = CallTimes::Clock::now();
  record_reduction(call);
  if (!is_complete) return;
  if (reduction.divisor != 1) reduction.output.div_(reduction.divisor);
  accumulate(reduction, reduction.output.to(parameters_.front().shard.options()));
}

// Whether the reduction is of all ranks; otherwise it waits for a later one.
bool ParameterGroup::reduce_over_replicas(Reduction& reduction) {
  if (!options_.replicas) return true;
  if (partial_ && partial_->parameters != reduction.parameters) {
    throw_error<ArgumentError>(
        "{}: this backward pass has gradients of other parameters than an earlier one, whose gradients "
        "set_requires_all_reduce(false) keeps from the replicas",
        describe());
  }
  if (partial_) reduction.output.add_(partial_->sum);
  partial_.reset();
  if (!requires_all_reduce) {
    partial_ = Partial{reduction.parameters, reduction.output};
    return false;
  }
  const auto ranks = options_.shard_group.size() * options_.replicas->size();
  const auto op = division(reduction.output.scalar_type(), ranks, gradient_divide_factor).op;
  tree_->run(*options_.replicas,
             [&] { options_.replicas->all_reduce(reduction.output, op, options_.where); });
  return true;
}

void ParameterGroup::record_reduction(const CallTimes& call) {
  traffic_.add_reduction(call);
  tree_->trace_call(tracing::StepTrace::Lane::communication, "reduce " + traced_name_, call);
}

void ParameterGroup::accumulate(const Reduction& reduction, const at::Tensor& mean) {
  std::int64_t offset = 0;
  for (const auto index : reduction.parameters) {
    auto& parameter = parameters_[index];
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

}  // namespace lockstep::fsdp
