// SPDX-License-Identifier: BSD-3-Clause
#include "ddp/reducer.h"

#include <ATen/ScalarOps.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/engine.h>

#include <lockstep/base/error.h>

namespace lockstep::ddp {
namespace {

bool aliases(const at::Tensor& gradient, const at::Tensor& view) {
  return gradient.defined() && gradient.is_alias_of(view) &&
         gradient.storage_offset() == view.storage_offset();
}

}  // namespace

Reducer::Reducer(std::vector<NamedTensor> parameters, ProcessGroup group, ReducerOptions options)
    : parameters_(std::move(parameters)),
      group_(std::move(group)),
      options_(std::move(options)),
      places_(parameters_.size()),
      ready_(parameters_.size(), false),
      hooks_(parameters_, [this](std::size_t parameter) { on_gradient_ready(parameter); }) {
  lay_out(initial_plan(parameters_, options_.limits));
}

void Reducer::lay_out(const BucketPlan& plan) {
  // A group of one has nothing to reduce: gradients stay where autograd puts them.
  buckets_ = alone() ? std::vector<Bucket>{} : make_buckets(plan, parameters_, group_);
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    for (std::size_t s = 0; s < buckets_[b].slots.size(); ++s)
      places_[buckets_[b].slots[s].parameter] = {b, s};
  }
  if (options_.gradient_as_bucket_view) move_gradients_into_buckets();
}

// Gradients that are kept (zero_grad(false), accumulation) are at home before the next backward, as in
// PyTorch: take_gradient() then divides them in place, which for a world size that is no power of two rounds
// otherwise than its copying way.
void Reducer::move_gradients_into_buckets() {
  const c10::NoGradGuard no_grad;
  for (const auto& bucket : buckets_) {
    for (const auto& slot : bucket.slots) {
      auto& gradient = parameters_[slot.parameter].tensor.mutable_grad();
      if (!gradient.defined() || gradient.is_sparse()) continue;
      slot.view.copy_(gradient);
      gradient = slot.view;
    }
  }
}

void Reducer::check_last_backward_finished() {
  const std::lock_guard lock(mutex_);
  if (!expecting_ || !started_) return;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!ready_[i]) names.push_back(parameters_[i].name);
  }
  throw Error(fmt::format(
      "rank {} of {}: DistributedDataParallel: these parameters took no part in the last backward, so its "
      "gradients "
      "were not averaged: {}. Every parameter that requires a gradient must contribute to the loss; call "
      "requires_grad_(false) on those that never do before wrapping the module",
      group_.rank(), group_.size(), fmt::join(names, ", ")));
}

std::vector<std::int64_t> Reducer::arrival_on_rank_0() const {
  // Ranks may see their gradients in different orders; one order must hold for all.
  auto order = at::tensor(arrival_, at::TensorOptions().dtype(at::kLong)).to(buckets_.front().flat.device());
  group_.broadcast(order, 0, options_.where);
  order = order.to(at::kCPU);
  return {order.data_ptr<std::int64_t>(), order.data_ptr<std::int64_t>() + order.numel()};
}

void Reducer::rebuild_buckets_if_due() {
  const std::lock_guard lock(mutex_);
  if (rebuilt_ || !arrival_known_) return;
  rebuilt_ = true;
  if (!alone()) lay_out(plan_by_arrival(parameters_, arrival_on_rank_0(), options_.limits));
}

void Reducer::expect_backward() {
  const std::lock_guard lock(mutex_);
  expecting_ = true;
  started_ = false;
  next_bucket_ = 0;
  ready_.assign(parameters_.size(), false);
  if (!arrival_known_) arrival_.clear();
  for (auto& bucket : buckets_) bucket.pending = bucket.slots.size();
}

void Reducer::on_gradient_ready(std::size_t parameter) {
  const std::lock_guard lock(mutex_);
  if (!expecting_) return;
  refuse_second_gradient(parameter);
  started_ = true;
  ready_[parameter] = true;
  if (!arrival_known_) arrival_.push_back(static_cast<std::int64_t>(parameter));
  if (alone()) {
    if (std::ranges::all_of(ready_, [](bool ready) { return ready; })) expecting_ = false;
    return;
  }
  const auto place = places_[parameter];
  auto& bucket = buckets_[place.bucket];
  take_gradient(bucket.slots[place.slot]);
  if (--bucket.pending == 0) launch_full_buckets();
}

void Reducer::refuse_second_gradient(std::size_t parameter) const {
  if (!ready_[parameter]) return;
  throw Error(fmt::format(
      "rank {} of {}: DistributedDataParallel: the gradient of {} became ready a second time before the "
      "backward was "
      "finished; backward was called twice on parts of one forward. Sum the losses and call backward once",
      group_.rank(), group_.size(), parameters_[parameter].name));
}

void Reducer::take_gradient(const Bucket::Slot& slot) {
  const c10::NoGradGuard no_grad;
  const auto& parameter = parameters_[slot.parameter];
  auto& gradient = parameter.tensor.mutable_grad();
  if (!gradient.defined()) {
    slot.view.zero_();
    return;
  }
  if (gradient.is_sparse()) {
    throw Error(fmt::format(
        "rank {} of {}: DistributedDataParallel: {} has a sparse gradient, which is not supported "
        "yet; create its embedding with sparse(false)",
        group_.rank(), group_.size(), parameter.name));
  }
  if (aliases(gradient, slot.view)) {
    slot.view.div_(group_.size());
    return;
  }
  // One pass copies and divides, by the reciprocal as in PyTorch: for sizes that are no power of two the
  // bits differ from those of a division.
  auto view = slot.view;
  at::mul_out(view, gradient, at::native::wrapped_scalar_tensor(1.0 / group_.size()));
  if (options_.gradient_as_bucket_view) gradient = slot.view;
}

void Reducer::launch_full_buckets() {
  // In the buckets' order, whatever the order of gradients: it must be the same on all ranks.
  while (next_bucket_ < buckets_.size() && buckets_[next_bucket_].pending == 0) {
    auto& bucket = buckets_[next_bucket_++];
    bucket.work = group_.all_reduce_async(bucket.flat, ReduceOp::SUM, options_.where);
  }
  if (next_bucket_ == buckets_.size()) {
    torch::autograd::Engine::get_default_engine().queue_callback([this] { finish_backward(); });
  }
}

void Reducer::finish_backward() {
  const std::lock_guard lock(mutex_);
  expecting_ = false;
  for (auto& bucket : buckets_) {
    std::exchange(bucket.work, Work()).wait();
    if (!options_.gradient_as_bucket_view) copy_back(bucket);
  }
  arrival_known_ = true;
}

void Reducer::copy_back(const Bucket& bucket) {
  const c10::NoGradGuard no_grad;
  for (const auto& slot : bucket.slots) {
    auto& gradient = parameters_[slot.parameter].tensor.mutable_grad();
    if (gradient.defined()) gradient.copy_(slot.view);
  }
}

}  // namespace lockstep::ddp
