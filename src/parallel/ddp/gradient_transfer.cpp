// SPDX-License-Identifier: BSD-3-Clause

// The part of the reducer that makes buckets, and moves gradients into them and back.
#include <algorithm>
#include <optional>

#include <ATen/ScalarOps.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/utils/grad_layout_contract.h>

#include "base/throw_error.h"
#include "comm/group_state.h"
#include "ddp/reducer.h"
#include "graphs/graph_phase.h"
#include "ddp/python_sync.h"

namespace lockstep::ddp {
namespace {

bool aliases(const at::Tensor& gradient, const at::Tensor& view) {
  return gradient.is_alias_of(view) && gradient.storage_offset() == view.storage_offset();
}

// LibTorch does not divide complex numbers of half precision.
void divide_by(int divisor, const at::Tensor& gradients) {
  (gradients.scalar_type() == at::kComplexHalf ? at::view_as_real(gradients) : gradients).div_(divisor);
}

}  // namespace

BucketPlan Reducer::first_plan() const {
  // With find_unused_parameters the gradient order is never final, so these buckets stay.
  return initial_plan(parameters_, finds_unused() ? options_.limits.rebuilt : options_.limits.initial);
}

void Reducer::set_buckets(const BucketPlan& plan) {
  buckets_ = has_nothing_to_reduce() ? std::vector<Bucket>{}
                                     : make_buckets(plan, parameters_, options_.gradient_dtype);
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    for (std::size_t s = 0; s < buckets_[b].slots.size(); ++s) {
      locations_[buckets_[b].slots[s].parameter] = {b, s};
    }
    if (keeps_buckets()) allocate(buckets_[b], parameters_, group_);
  }
  if (options_.gradient_as_bucket_view && keeps_buckets()) move_gradients_into_buckets();
}

std::vector<std::int64_t> Reducer::ready_order_of_rank_0() const {
  // Ranks may see their gradients in different orders; all must use one.
  auto order = at::tensor(learned_.ready_order, at::TensorOptions().dtype(at::kLong))
                   .to(parameters_.front().tensor.device());
  group_.broadcast(order, 0, options_.where);
  order = order.to(at::kCPU);
  return {order.data_ptr<std::int64_t>(), order.data_ptr<std::int64_t>() + order.numel()};
}

void Reducer::rebuild_buckets_if_due() {
  const std::lock_guard lock(mutex_);
  if (learned_.order != Learned::Order::known) return;
  learned_.order = Learned::Order::applied;
  // Hidden from a GraphedStep that warms up and compares this step with the next.
  std::optional<at::DisableRecordFunctionGuard> unseen;
  if (graph_phase() != GraphPhase::none) unseen.emplace();
  if (has_nothing_to_reduce()) return;
  if (comm::state_of(group_).info().with_python) {
    const auto own = plan_by_order(parameters_, learned_.ready_order, options_.limits.rebuilt);
    set_buckets(plan_of_rank_0(group_, own, parameters_.front().tensor.device(), options_.where));
    return;
  }
  set_buckets(plan_by_order(parameters_, ready_order_of_rank_0(), options_.limits.rebuilt));
}

void Reducer::begin_buckets() {
  step_.divisor = 0;
  step_.next_bucket = 0;
  for (auto& bucket : buckets_) {
    bucket.pending = bucket.slots.size();
    bucket.finished = false;
    bucket.skipped = options_.skip_all_reduce_unused_params &&
                     std::ranges::all_of(bucket.slots, [this](const Bucket::Slot& slot) {
                       return std::ranges::binary_search(learned_.unused, slot.parameter);
                     });
  }
}

// Gradients that are kept (zero_grad(false), accumulation) move before the next backward, as in PyTorch:
// copy_to_bucket() then divides them in place, which for a world size that is no power of two rounds
// differently from its copy.
void Reducer::move_gradients_into_buckets() {
  const c10::NoGradGuard no_grad;
  for (const auto& bucket : buckets_) {
    if (bucket.sparse) continue;
    for (const auto& slot : bucket.slots) {
      auto& gradient = parameters_[slot.parameter].tensor.mutable_grad();
      if (!gradient.defined() || gradient.is_sparse()) continue;
      slot.view.copy_(gradient);
      gradient = slot.view;
    }
  }
}

void Reducer::copy_to_bucket(Bucket& bucket, Bucket::Slot& slot) {
  if (bucket.skipped) return;
  const c10::NoGradGuard no_grad;
  if (bucket.sparse) {
    take_sparse_gradient(bucket);
    return;
  }
  allocate(bucket, parameters_, group_);
  const auto& parameter = parameters_[slot.parameter];
  auto& gradient = parameter.tensor.mutable_grad();
  if (!gradient.defined()) {
    slot.view.zero_();
    return;
  }
  if (gradient.is_sparse()) {
    throw_error<Error>(
        "{}: {} has a sparse gradient, which only the weight of an Embedding or EmbeddingBag with "
        "sparse(true) may have",
        whoami(), parameter.name);
  }
  if (options_.batched_grad_copy) return;
  if (aliases(gradient, slot.view)) {
    if (!hook_) divide_by(divisor(), slot.view);
    return;
  }
  if (hook_) {
    slot.view.copy_(gradient);
  } else {
    // By the reciprocal, as in PyTorch: for sizes that are no power of two the bits differ from a division's.
    auto view = slot.view;
    at::mul_out(view, gradient, at::native::wrapped_scalar_tensor(1.0 / divisor()));
  }
  if (options_.gradient_as_bucket_view) gradient = slot.view;
}

void Reducer::copy_all_to_bucket(Bucket& bucket) {
  if (bucket.sparse) return;
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> views;
  std::vector<at::Tensor> gradients;
  for (const auto& slot : bucket.slots) {
    auto& gradient = parameters_[slot.parameter].tensor.mutable_grad();
    if (!gradient.defined() || aliases(gradient, slot.view)) continue;
    views.push_back(slot.view);
    gradients.push_back(gradient);
    if (options_.gradient_as_bucket_view) gradient = slot.view;
  }
  if (!views.empty()) at::_foreach_copy_(views, gradients);
  if (!hook_) divide_by(divisor(), bucket.flat);
}

void Reducer::take_sparse_gradient(Bucket& bucket) {
  const auto& parameter = parameters_[bucket.slots.front().parameter];
  const auto& gradient = parameter.tensor.mutable_grad();
  if (gradient.defined() && !gradient.is_sparse()) {
    throw_error<Error>("{}: {} belongs to an embedding with sparse(true), but its gradient is not sparse",
                       whoami(), parameter.name);
  }
  if (!gradient.defined()) {
    bucket.flat = zeros_of(bucket, parameters_, group_);
    return;
  }
  bucket.flat = gradient;
  if (!hook_) bucket.flat.div_(divisor());
}

void Reducer::finish(Bucket& bucket) {
  const c10::NoGradGuard no_grad;
  bucket.finished = true;
  if (bucket.skipped) return;
  if (bucket.sparse) {
    const auto parameter = bucket.slots.front().parameter;
    if (was_used(parameter)) parameters_[parameter].tensor.mutable_grad() = bucket.work.wait();
    bucket.flat.reset();
  } else {
    finish_dense(bucket);
  }
  if (!optimizers_.empty()) {
    for (const auto& slot : bucket.slots) step_in_backward(slot.parameter);
  }
  if (keeps_buckets()) {
    bucket.work = {};
  } else {
    release(bucket);
  }
}

void Reducer::finish_dense(Bucket& bucket) {
  const auto reduced = bucket.work.wait();
  if (!reduced.defined() || reduced.numel() != bucket.numel) {
    throw_error<Error>("{}: the communication hook returned {} elements for a bucket of {}", whoami(),
                       reduced.defined() ? reduced.numel() : 0, bucket.numel);
  }
  if (options_.gradient_dtype) {
    finish_cast(bucket, reduced);
    return;
  }
  if (!aliases(reduced, bucket.flat)) bucket.flat.copy_(reduced.reshape({-1}));
  for (const auto& slot : bucket.slots) {
    if (!was_used(slot.parameter)) continue;
    const auto& parameter = parameters_[slot.parameter];
    auto& gradient = parameter.tensor.mutable_grad();
    if (options_.gradient_as_bucket_view) {
      if (!gradient.defined()) gradient = slot.view;
    } else if (gradient.defined()) {
      gradient.copy_(slot.view);
    } else {
      gradient = torch::autograd::utils::clone_obey_contract(slot.view, parameter.tensor);
    }
  }
}

// In mixed precision gradients become the sums in the parameters' own types.
void Reducer::finish_cast(const Bucket& bucket, const at::Tensor& reduced) {
  for (const auto& slot : bucket.slots) {
    if (!was_used(slot.parameter)) continue;
    const auto& tensor = parameters_[slot.parameter].tensor;
    const auto part =
        reduced.as_strided(slot.view.sizes(), slot.view.strides(), reduced.storage_offset() + slot.offset);
    tensor.mutable_grad() = part.to(dtypes_[slot.parameter], /*non_blocking=*/false, /*copy=*/true);
  }
}

UsedParameters::UsedParameters(std::size_t parameters, c10::Device device)
    : here_(at::zeros({static_cast<std::int64_t>(parameters)}, at::kInt)),
      sent_(at::zeros_like(here_, at::TensorOptions().device(device))) {}

void UsedParameters::reduce(const ProcessGroup& group, std::source_location where) {
  sent_.copy_(here_);
  work_ = group.all_reduce_async(sent_, ReduceOp::SUM, where);
  waited_ = false;
}

void UsedParameters::wait() {
  if (std::exchange(waited_, true)) return;
  work_.wait();
  here_.copy_(sent_);
}

bool UsedParameters::used_anywhere(std::size_t parameter) {
  if (here_.data_ptr<std::int32_t>()[parameter] == 0) wait();
  return here_.data_ptr<std::int32_t>()[parameter] != 0;
}

void UsedParameters::clear() {
  wait();
  here_.zero_();
}

}  // namespace lockstep::ddp
