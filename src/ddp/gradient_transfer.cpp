// SPDX-License-Identifier: BSD-3-Clause

// The part of the reducer that moves gradients into buckets and back.
#include <ATen/ScalarOps.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/mul.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/utils/grad_layout_contract.h>

#include "base/throw_error.h"
#include "ddp/reducer.h"

namespace lockstep::ddp {
namespace {

bool aliases(const at::Tensor& gradient, const at::Tensor& view) {
  return gradient.is_alias_of(view) && gradient.storage_offset() == view.storage_offset();
}

}  // namespace

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
    if (!hook_) slot.view.div_(divisor());
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
  if (!hook_) bucket.flat.div_(divisor());
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
  bucket.sparse ? finish_sparse(bucket) : finish_dense(bucket);
  if (optimizers_.empty()) {
    bucket.work = {};
  } else {
    apply_optimizers(bucket);
  }
}

void Reducer::finish_sparse(Bucket& bucket) {
  const auto parameter = bucket.slots.front().parameter;
  if (was_used(parameter)) parameters_[parameter].tensor.mutable_grad() = bucket.work.wait();
  bucket.flat.reset();
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

void Reducer::apply_optimizers(Bucket& bucket) {
  for (const auto& slot : bucket.slots) step_in_backward(slot.parameter);
  release(bucket);
}

}  // namespace lockstep::ddp
