// SPDX-License-Identifier: BSD-3-Clause

// Note [Changes of the module]
//
// Before a forward that will be reduced, DistributedDataParallel compares the module with what its buckets
// were built on (modules::ModuleWatch). If nothing has changed, no call is made. A rank whose module has
// changed must learn whether the others' have changed as well, while a rank without a change runs its step:
//
// - on_host: it abandons the step in the node-local group, with the change as the reason. It waits until each
//   other rank has done so, too, or has entered its forward. The waits of ranks without the change end.
// - in_gradients: it makes the step's calls with zeros and announces a failed step (note [Failed steps]).
// - by_a_call: it makes the call by which the ranks compare their new modules. A rank without the change
//   makes another call, which ends with an error of the backend, at the latest at the timeout.
//
// If all ranks have changed, they compare the new modules and begin anew with new buckets.
#include <algorithm>

#include <ATen/ops/_sparse_coo_tensor_with_dims.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include "base/throw_error.h"
#include "ddp/reducer.h"
#include "device/libtorch_versions.h"

namespace lockstep::ddp {
namespace {

auto find(const std::vector<TrainedParameter>& parameters, const TrainedParameter& parameter) {
  return std::ranges::find_if(parameters,
                              [&](const auto& each) { return each.tensor.is_same(parameter.tensor); });
}

// What ranks say of a gradient that is to be averaged: nothing, that it is dense, or, if it is sparse, one
// more than its sparse dimensions.
constexpr int kNoGradient = 0;
constexpr int kDense = 1;

int gradient_kind(const at::Tensor& gradient) {
  if (!gradient.defined()) return kNoGradient;
  return gradient.is_sparse() ? kDense + static_cast<int>(gradient.sparse_dim()) : kDense;
}

at::Tensor zero_gradient(const at::Tensor& parameter, int kind) {
  if (kind == kDense) return at::zeros_like(parameter);
  const int sparse_dims = kind - kDense;
  return at::_sparse_coo_tensor_with_dims(sparse_dims, parameter.dim() - sparse_dims, parameter.sizes(),
                                          parameter.options().layout(at::kSparse));
}

void average(at::Tensor& gradient, const ProcessGroup& group, std::source_location where) {
  if (gradient.is_sparse()) {
    auto sum = sum_sparse(gradient, group, where);
    gradient = sum.wait().div_(group.size());
    return;
  }
  const auto mean = gradient.contiguous().div(group.size());
  group.all_reduce(mean, ReduceOp::SUM, where);
  gradient.copy_(mean);
}

}  // namespace

Reducer::ChangeNews Reducer::change_news() {
  const std::lock_guard lock(mutex_);
  if (abort_.is_local()) return ChangeNews::on_host;
  begin_buckets();
  return can_announce() ? ChangeNews::in_gradients : ChangeNews::by_a_call;
}

std::vector<std::string> Reducer::exchange_changes(const std::string& change) {
  if (abort_.is_local()) return abort_.exchange_changes(change);
  const std::lock_guard lock(mutex_);
  begin_buckets();
  auto changes = announce(change);
  changes.resize(static_cast<std::size_t>(group_.size()));
  return changes;
}

bool Reducer::has_same(const std::vector<TrainedParameter>& parameters) const {
  return std::ranges::equal(parameters_, parameters, [](const auto& one, const auto& other) {
    return one.tensor.is_same(other.tensor);
  });
}

modules::ModuleWatch::Accumulators Reducer::accumulators() const {
  modules::ModuleWatch::Accumulators accumulators;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto& tensor = parameters_[i].tensor;
    if (tensor.requires_grad()) accumulators.emplace(tensor.unsafeGetTensorImpl(), hooks_->node(i));
  }
  return accumulators;
}

std::optional<std::string> Reducer::parameter_without_hook() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto& tensor = parameters_[i].tensor;
    const auto* const node = hooks_->node(i);
    if (tensor.requires_grad() && (node == nullptr || libtorch::accumulator_of(tensor) != node))
      return parameters_[i].name;
  }
  return std::nullopt;
}

void Reducer::check_hook_can_follow() const {
  using Function = BucketWork (*)(GradBucket&);
  if (!hook_ || options_.after_reduction || hook_.target<Function>() != nullptr) return;
  throw ArgumentError(
      "A communication hook is registered, which may keep a state for each bucket; wrap the module anew "
      "after the change");
}

// Ranks may have accumulated gradients of different parameters.
void Reducer::average_leaving(const std::vector<TrainedParameter>& parameters) {
  const std::lock_guard lock(mutex_);
  const c10::NoGradGuard no_grad;
  std::vector<std::size_t> leaving;
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (find(parameters, parameters_[i]) == parameters.end()) leaving.push_back(i);
  std::vector<int> kinds;
  for (const auto i : leaving)
    kinds.push_back(step_.is_local[i] ? gradient_kind(parameters_[i].tensor.grad()) : kNoGradient);
  if (leaving.empty() || group_.size() == 1) return;
  const auto row = at::tensor(kinds, at::kInt).to(parameters_.front().tensor.device());
  group_.all_reduce(row, ReduceOp::MAX, options_.where);
  const auto common = row.cpu();
  for (std::size_t n = 0; n < leaving.size(); ++n) {
    const auto kind = common[static_cast<std::int64_t>(n)].item<int>();
    if (kind == kNoGradient) continue;
    const auto& tensor = parameters_[leaving[n]].tensor;
    auto& gradient = tensor.mutable_grad();
    if (!gradient.defined()) gradient = zero_gradient(tensor, kind);
    average(gradient, group_, options_.where);
    step_.is_local[leaving[n]] = false;
  }
}

void Reducer::rebuild(std::vector<TrainedParameter> parameters) {
  const std::lock_guard lock(mutex_);
  std::vector<bool> is_local;
  for (const auto& parameter : parameters) {
    const auto before = find(parameters_, parameter);
    is_local.push_back(before != parameters_.end() &&
                       step_.is_local[static_cast<std::size_t>(before - parameters_.begin())]);
  }
  parameters_ = std::move(parameters);
  locations_.assign(parameters_.size(), {});
  used_ = UsedParameters(parameters_.size(), parameters_.front().tensor.device());
  forget_steps();
  step_.is_local = std::move(is_local);
  hooks_stream_.reset();
  renew_hooks();
  set_buckets(first_plan());
}

std::shared_ptr<void> Reducer::stand_in(const std::function<at::Tensor(std::size_t)>& tensor) {
  auto own = parameters_;
  for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i].tensor = tensor(i);
  return {nullptr, [this, own = std::move(own)](void*) mutable { parameters_ = std::move(own); }};
}

}  // namespace lockstep::ddp
