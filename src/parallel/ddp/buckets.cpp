// SPDX-License-Identifier: BSD-3-Clause
#include "ddp/buckets.h"

#include <algorithm>

#include <ATen/ScalarOps.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/utils/grad_layout_contract.h>

#include "base/throw_error.h"
#include "comm/call_site.h"
#include "ddp/option_rules.h"

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

Buckets::Buckets(std::vector<TrainedParameter> parameters, const ProcessGroup& group,
                 const ReducerOptions& options)
    : group_(group), options_(options) {
  replace_parameters(std::move(parameters));
  if (!options_.optimizer_in_backward) return;
  for (const auto& parameter : parameters_)
    optimizers_.push_back(options_.optimizer_in_backward({parameter.tensor}));
}

void Buckets::replace_parameters(std::vector<TrainedParameter> parameters) {
  parameters_ = std::move(parameters);
  locations_.assign(parameters_.size(), {});
  dtypes_.clear();
  for (const auto& parameter : parameters_) dtypes_.push_back(parameter.tensor.scalar_type());
}

std::shared_ptr<void> Buckets::stand_in(const std::function<at::Tensor(std::size_t)>& tensor) {
  auto own = parameters_;
  for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i].tensor = tensor(i);
  return {nullptr, [this, own = std::move(own)](void*) mutable { parameters_ = std::move(own); }};
}

void Buckets::lay_out() {
  const auto limits = limits_of(options_);
  // With find_unused_parameters the gradient order is never final, so these buckets stay.
  lay_out(initial_plan(parameters_, options_.finds_unused() ? limits.rebuilt : limits.initial));
}

void Buckets::lay_out(const BucketPlan& plan) {
  buckets_ = has_nothing_to_reduce() ? std::vector<Bucket>{}
                                     : make_buckets(plan, parameters_, options_.gradient_dtype());
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    for (std::size_t s = 0; s < buckets_[b].slots.size(); ++s)
      locations_[buckets_[b].slots[s].parameter] = {b, s};
    if (keeps_memory()) allocate(buckets_[b], parameters_, group_);
  }
  if (options_.gradient_as_bucket_view && keeps_memory()) move_gradients_into_buckets();
}

void Buckets::begin_step(const std::vector<std::size_t>& unused) {
  divisor_ = 0;
  for (auto& bucket : buckets_) {
    bucket.pending = bucket.slots.size();
    bucket.finished = false;
    bucket.skipped = options_.skip_all_reduce_unused_params &&
                     std::ranges::all_of(bucket.slots, [&](const Bucket::Slot& slot) {
                       return std::ranges::binary_search(unused, slot.parameter);
                     });
  }
}

// Gradients that are kept (zero_grad(false), accumulation) move before the next backward, as in PyTorch:
// copy_in() then divides them in place, which for a world size that is no power of two rounds
// differently from its copy.
void Buckets::move_gradients_into_buckets() {
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

bool Buckets::copy_in(std::size_t parameter) {
  if (buckets_.empty()) {
    if (!optimizers_.empty()) step_in_backward(parameter);
    return false;
  }
  const auto [b, s] = locations_[parameter];
  copy_in(buckets_[b], buckets_[b].slots[s]);
  return --buckets_[b].pending == 0;
}

void Buckets::copy_in(Bucket& bucket, Bucket::Slot& slot) {
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
        ddp_on_rank(group_), parameter.name);
  }
  const bool in_place = options_.batched_grad_copy || aliases(gradient, slot.view);
  slot.division = has_hook_ ? Division::none : in_place ? Division::by_number : Division::by_reciprocal;
  if (options_.batched_grad_copy) return;
  if (in_place) {
    if (!has_hook_) divide_by(divisor(), slot.view);
    return;
  }
  if (has_hook_) {
    slot.view.copy_(gradient);
  } else {
    // By the reciprocal, as in PyTorch: for sizes that are no power of two the bits differ from a division's.
    auto view = slot.view;
    at::mul_out(view, gradient, at::native::wrapped_scalar_tensor(1.0 / divisor()));
  }
  if (options_.gradient_as_bucket_view) gradient = slot.view;
}

at::Tensor Buckets::divided(const at::Tensor& gradient, Division division) {
  if (division == Division::none) return gradient;
  if (division == Division::by_reciprocal)
    return at::mul(gradient, at::native::wrapped_scalar_tensor(1.0 / divisor()));
  auto copy = gradient.clone();
  divide_by(divisor(), copy);
  return copy;
}

void Buckets::copy_batch_in(Bucket& bucket) {
  if (!options_.batched_grad_copy || bucket.sparse) return;
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
  if (!has_hook_) divide_by(divisor(), bucket.flat);
}

void Buckets::take_sparse_gradient(Bucket& bucket) {
  const auto& parameter = parameters_[bucket.slots.front().parameter];
  const auto& gradient = parameter.tensor.mutable_grad();
  if (gradient.defined() && !gradient.is_sparse()) {
    throw_error<Error>("{}: {} belongs to an embedding with sparse(true), but its gradient is not sparse",
                       ddp_on_rank(group_), parameter.name);
  }
  if (!gradient.defined()) {
    bucket.flat = zeros_of(bucket, parameters_, group_);
    return;
  }
  bucket.flat = gradient;
  if (!has_hook_) bucket.flat.div_(divisor());
}

void Buckets::finish(Bucket& bucket, UsedParameters& used) {
  const c10::NoGradGuard no_grad;
  bucket.finished = true;
  if (bucket.skipped) return;
  if (bucket.sparse) {
    const auto parameter = bucket.slots.front().parameter;
    if (was_used(parameter, used)) parameters_[parameter].tensor.mutable_grad() = bucket.work.wait();
    bucket.flat.reset();
  } else {
    finish_dense(bucket, used);
  }
  if (!optimizers_.empty()) {
    for (const auto& slot : bucket.slots) step_in_backward(slot.parameter);
  }
  if (keeps_memory()) {
    bucket.work = {};
  } else {
    release(bucket);
  }
}

void Buckets::finish_dense(Bucket& bucket, UsedParameters& used) {
  const auto reduced = bucket.work.wait();
  if (!reduced.defined() || reduced.numel() != bucket.numel) {
    throw_error<Error>("{}: the communication hook returned {} elements for a bucket of {}",
                       ddp_on_rank(group_), reduced.defined() ? reduced.numel() : 0, bucket.numel);
  }
  if (options_.gradient_dtype()) {
    finish_cast(bucket, reduced, used);
    return;
  }
  if (!aliases(reduced, bucket.flat)) bucket.flat.copy_(reduced.reshape({-1}));
  for (const auto& slot : bucket.slots) {
    if (!was_used(slot.parameter, used)) continue;
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
void Buckets::finish_cast(const Bucket& bucket, const at::Tensor& reduced, UsedParameters& used) {
  for (const auto& slot : bucket.slots) {
    if (!was_used(slot.parameter, used)) continue;
    const auto& tensor = parameters_[slot.parameter].tensor;
    const auto part =
        reduced.as_strided(slot.view.sizes(), slot.view.strides(), reduced.storage_offset() + slot.offset);
    tensor.mutable_grad() = part.to(dtypes_[slot.parameter], /*non_blocking=*/false, /*copy=*/true);
  }
}

bool Buckets::was_used(std::size_t parameter, UsedParameters& used) const {
  return !(options_.find_unused_parameters || options_.static_graph) || used.used_anywhere(parameter);
}

void Buckets::step_in_backward(std::size_t parameter) {
  auto& gradient = parameters_[parameter].tensor.mutable_grad();
  if (!gradient.defined()) return;
  optimizers_[parameter]->step();
  gradient.reset();
}

void Buckets::zero() {
  for (auto& bucket : buckets_)
    if (bucket.flat.defined() && !bucket.sparse) bucket.flat.zero_();
}

int Buckets::divisor() {
  if (divisor_ == 0) divisor_ = divisor_source_ ? divisor_source_() : group_.size();
  return divisor_;
}

std::string Buckets::description(const Bucket& bucket) const {
  return fmt::format("bucket {} ({} bytes, {} first)", &bucket - buckets_.data(), bucket.bytes,
                     parameters_[bucket.slots.front().parameter].name);
}

UsedParameters::UsedParameters(std::size_t parameters, c10::Device device)
    : here_(at::zeros({static_cast<std::int64_t>(parameters)}, at::kInt)),
      sent_(at::zeros_like(here_, at::TensorOptions().device(device))) {}

void UsedParameters::reduce(const ProcessGroup& group, std::source_location where) {
  sent_.copy_(here_);
  const comm::CallSite site(where, "which parameters were used");
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
