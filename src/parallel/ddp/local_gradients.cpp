// SPDX-License-Identifier: BSD-3-Clause
#include "ddp/local_gradients.h"

#include <algorithm>

#include <ATen/ops/_sparse_coo_tensor_with_dims.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <lockstep/base/log.h>

#include "base/caller_place.h"
#include "intercept/nested_backward.h"
#include "optim/unaveraged.h"

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

LocalGradients::LocalGradients(const Buckets& buckets, const ProcessGroup& group,
                               const ReducerOptions& options, AtEnd at_end)
    : buckets_(buckets),
      group_(group),
      options_(options),
      at_end_(std::move(at_end)),
      is_local_(buckets.parameters().size()) {}

void LocalGradients::begin_local_forward() {
  ++forwards_;
  in_backward_ = false;
}

void LocalGradients::add_unhooked(const modules::NamedTensor& parameter) {
  for (std::size_t i = 0; i < is_local_.size(); ++i)
    if (buckets_.parameters()[i].tensor.is_same(parameter.tensor)) is_local_[i] = true;
  if (!are_meant()) mark_unaveraged(parameter.name, parameter.tensor);
}

void LocalGradients::add(std::size_t parameter, Claim of_others) {
  if (of_others == Claim::reduced) return;
  is_local_[parameter] = true;
  if (are_meant() || of_others == Claim::local) return;
  const auto& [name, tensor, sparse] = buckets_.parameters()[parameter];
  mark_unaveraged(name, tensor);
}

void LocalGradients::end_reduced_step() {
  is_local_.assign(is_local_.size(), false);
  if (!unaveraged_) return;
  for (const auto& parameter : buckets_.parameters()) optim::unmark_unless_changed(parameter.tensor);
}

bool LocalGradients::exist() const {
  for (std::size_t i = 0; i < is_local_.size(); ++i)
    if (is_local_[i] && buckets_.parameters()[i].tensor.grad().defined()) return true;
  return false;
}

bool LocalGradients::are_meant() {
  if (forwards_ > 0 && !std::exchange(in_backward_, true)) {
    intercept::in_outer_backward([this] {
      intercept::note_wrapped_backward();
      at_end_(&LocalGradients::end_local_backward);
    });
  }
  return in_backward_ || (options_.sync != nullptr && !*options_.sync);
}

void LocalGradients::mark_unaveraged(const std::string& name, const at::Tensor& parameter) {
  if (group_.size() == 1) return;
  const auto& where = options_.where;
  if (!unaveraged_) {
    unaveraged_ = std::make_shared<const std::string>(fmt::format(
        "{}{}: the gradient of {} came from a backward that is not averaged over the ranks. "
        "Call the wrapper's forward(), not the module's own; one backward for each; or no_sync(), where this "
        "is meant",
        ddp_on_rank(group_), made_at(where), name));
  }
  const bool was_used = optim::mark_unaveraged(parameter, unaveraged_);
  marked_.push_back(parameter);
  is_used_ = is_used_ || was_used;
  if (const int backward = intercept::current_backward(); std::exchange(marked_in_, backward) == backward)
    return;
  intercept::in_outer_backward([this] { at_end_(&LocalGradients::judge_marked); });
}

// At the end of a backward, when all wrappers that average it are known.
void LocalGradients::judge_marked() {
  const auto marked = std::exchange(marked_, {});
  if (const bool was_used = std::exchange(is_used_, false);
      intercept::is_wrapped_backward(intercept::current_backward()) && !was_used)
    return;
  for (const auto& each : marked) optim::confirm_unaveraged(each);
  if (!marked.empty() && !std::exchange(has_warned_, true)) log(LogLevel::warning, *unaveraged_);
}

void LocalGradients::end_local_backward() {
  if (std::exchange(in_backward_, false) && forwards_ > 0) --forwards_;
}

void LocalGradients::average_leaving(const std::vector<TrainedParameter>& parameters) {
  const c10::NoGradGuard no_grad;
  const auto& own = buckets_.parameters();
  std::vector<std::size_t> leaving;
  for (std::size_t i = 0; i < own.size(); ++i)
    if (find(parameters, own[i]) == parameters.end()) leaving.push_back(i);
  std::vector<int> kinds;
  for (const auto i : leaving)
    kinds.push_back(is_local_[i] ? gradient_kind(own[i].tensor.grad()) : kNoGradient);
  if (leaving.empty() || group_.size() == 1) return;
  const auto row = at::tensor(kinds, at::kInt).to(buckets_.device());
  group_.all_reduce(row, ReduceOp::MAX, options_.where);
  const auto common = row.cpu();
  for (std::size_t n = 0; n < leaving.size(); ++n) {
    const auto kind = common[static_cast<std::int64_t>(n)].item<int>();
    if (kind == kNoGradient) continue;
    const auto& tensor = own[leaving[n]].tensor;
    auto& gradient = tensor.mutable_grad();
    if (!gradient.defined()) gradient = zero_gradient(tensor, kind);
    average(gradient, group_, options_.where);
    is_local_[leaving[n]] = false;
  }
}

void LocalGradients::replace_parameters(const std::vector<TrainedParameter>& parameters) {
  const auto& own = buckets_.parameters();
  std::vector<bool> is_local;
  for (const auto& parameter : parameters) {
    const auto before = find(own, parameter);
    is_local.push_back(before != own.end() && is_local_[static_cast<std::size_t>(before - own.begin())]);
  }
  is_local_ = std::move(is_local);
  forwards_ = 0;
  in_backward_ = false;
}

}  // namespace lockstep::ddp
