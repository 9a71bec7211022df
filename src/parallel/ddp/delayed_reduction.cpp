// SPDX-License-Identifier: BSD-3-Clause
#include "ddp/delayed_reduction.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <lockstep/base/error.h>

namespace lockstep::ddp {

DelayedReduction::DelayedReduction(std::vector<modules::NamedTensor> parameters, const at::Tensor& trigger,
                                   ProcessGroup group, std::source_location where)
    : parameters_(std::move(parameters)), trigger_(trigger), group_(std::move(group)), where_(where) {
  std::int64_t numel = 0;
  for (const auto& [name, tensor] : parameters_) {
    const auto& first = parameters_.front().tensor;
    if (tensor.scalar_type() != first.scalar_type() || tensor.device() != first.device()) {
      throw ArgumentError(
          "DistributedDataParallel: the parameters of delay_all_reduce_named_params must have one dtype and "
          "one device; " +
          name + " differs");
    }
    numel += tensor.numel();
  }
  flat_ = at::zeros({numel}, parameters_.front().tensor.options().requires_grad(false));
  std::int64_t offset = 0;
  for (const auto& [name, tensor] : parameters_) {
    views_.push_back(alias_of(flat_, offset, at::empty(tensor.sizes(), at::kMeta)));
    offset += tensor.numel();
  }
  hook_ = trigger_.register_hook([this](const at::Tensor&) { reduce(); });
}

DelayedReduction::~DelayedReduction() { trigger_.remove_hook(hook_); }

void DelayedReduction::prepare(bool sync) {
  sync_ = sync;
  const c10::NoGradGuard no_grad;
  const bool all_dropped = std::ranges::none_of(
      parameters_, [](const modules::NamedTensor& each) { return each.tensor.mutable_grad().defined(); });
  if (all_dropped) flat_.zero_();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    auto& gradient = parameters_[i].tensor.mutable_grad();
    if (gradient.defined() && gradient.is_alias_of(flat_)) continue;
    gradient.defined() ? views_[i].copy_(gradient) : views_[i].zero_();
    gradient = views_[i];
  }
}

void DelayedReduction::reduce() {
  if (!sync_) return;
  const c10::NoGradGuard no_grad;
  flat_.div_(group_.size());
  work_ = group_.all_reduce_async(flat_, ReduceOp::SUM, where_);
  torch::autograd::Engine::get_default_engine().queue_callback(
      [this] { std::exchange(work_, Work()).wait(); });
}

}  // namespace lockstep::ddp
