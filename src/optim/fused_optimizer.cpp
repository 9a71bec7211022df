// SPDX-License-Identifier: BSD-3-Clause
#include <limits>
#include <unordered_set>

#include <c10/core/GradMode.h>

#include <lockstep/base/error.h>
#include <lockstep/optim/fused_optimizer.h>

namespace lockstep::optim {
namespace {

using torch::optim::OptimizerParamGroup;

FusedOptions& fused_options(torch::optim::OptimizerOptions& options) {
  return dynamic_cast<FusedOptions&>(options);
}

}  // namespace

std::vector<at::Tensor> FusedOptimizer::new_parameters(const OptimizerParamGroup& group) const {
  std::unordered_set<const void*> known;
  for (const auto& other : param_groups()) {
    for (const auto& parameter : other.params()) known.insert(parameter.unsafeGetTensorImpl());
  }
  std::unordered_set<const void*> here;
  std::vector<at::Tensor> parameters;
  for (const auto& parameter : group.params()) {
    if (!parameter.defined()) throw ArgumentError("a fused optimizer got an undefined parameter");
    if (known.contains(parameter.unsafeGetTensorImpl())) {
      throw ArgumentError(
          "a fused optimizer got a parameter that one of its groups has already; leave it out of one of "
          "them");
    }
    if (here.insert(parameter.unsafeGetTensorImpl()).second) parameters.push_back(parameter);
  }
  return parameters;
}

void FusedOptimizer::begin(const std::vector<OptimizerParamGroup>& param_groups) {
  check_values(defaults());
  for (const auto& group : param_groups) add_param_group(group);
}

void FusedOptimizer::add_param_group(const OptimizerParamGroup& param_group) {
  OptimizerParamGroup group(param_group);
  group.params() = new_parameters(param_group);
  std::unique_ptr<torch::optim::OptimizerOptions> given;
  if (param_group.has_options()) given = own_options(param_group.options());
  Optimizer::add_param_group(group);
  if (!given) return;
  try {
    merge_extras(param_groups().back(), fused_options(*given));
    check_values(param_groups().back().options());
  } catch (...) {
    param_groups().pop_back();
    throw;
  }
}

// LibTorch merges its own part of the options only, and before 2.12 nothing at all.
void FusedOptimizer::merge_extras(OptimizerParamGroup& added, const FusedOptions& given) const {
  added.set_options(own_options(added.options()));
  auto& merged = fused_options(added.options());
  if (given.maximize()) merged.maximize() = true;
  if (given.lr_tensor().defined()) {
    merged.lr_tensor_ = given.lr_tensor();
    added.options().set_lr(given.lr_number());
  } else if (merged.is_lr_behind()) {
    merged.lr_tensor_ = at::Tensor();  // the group has a number of its own
  }
}

at::Tensor FusedOptimizer::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const c10::AutoGradMode with_gradients(true);
    loss = closure();
  }
  bring_rates();
  const c10::NoGradGuard no_grad;
  for (std::size_t g = 0; g < param_groups().size(); ++g) step_group(param_groups()[g], g);
  return loss;
}

void FusedOptimizer::bring_rates() {
  for (auto& group : param_groups()) {
    auto& options = fused_options(group.options());
    if (options.is_lr_behind()) options.bring_lr(options.lr_number());
  }
}

std::vector<at::Tensor> FusedOptimizer::lr_tensors() const {
  std::vector<at::Tensor> tensors;
  for (const auto& group : param_groups()) {
    tensors.push_back(dynamic_cast<const FusedOptions&>(group.options()).lr_tensor());
  }
  return tensors;
}

void FusedOptimizer::give_back(const std::vector<at::Tensor>& lr_tensors) {
  for (std::size_t g = 0; g < lr_tensors.size(); ++g) {
    auto& options = param_groups()[g].options();
    const auto lr = options.get_lr();
    fused_options(options).lr_tensor_ = lr_tensors[g];
    options.set_lr(lr);
  }
}

}  // namespace lockstep::optim
