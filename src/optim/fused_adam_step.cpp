// SPDX-License-Identifier: BSD-3-Clause
#include "optim/fused_adam_step.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

namespace lockstep::optim {

void FusedAdamStep::gather(const torch::optim::OptimizerParamGroup& group, std::size_t index, bool amsgrad) {
  for (std::size_t i = 0; i < group.params().size(); ++i) {
    const auto& parameter = group.params()[i];
    if (parameter.grad().defined()) add({name_, index, i, parameter}, amsgrad);
  }
}

void FusedAdamStep::add(const ParameterName& name, bool amsgrad) {
  check_parameter(name);
  auto& lists = calls_.at(name.parameter);
  lists.gradients.add(name);
  auto& state = state_of(name, amsgrad);
  lists.parameters.push_back(name.parameter);
  lists.exp_avgs.push_back(state.exp_avg());
  lists.exp_avg_sqs.push_back(state.exp_avg_sq());
  if (amsgrad) lists.max_exp_avg_sqs.push_back(state.max_exp_avg_sq());
  lists.steps.push_back(state.step());
}

FusedAdamParamState& FusedAdamStep::state_of(const ParameterName& name, bool amsgrad) {
  const auto& parameter = name.parameter;
  auto& kept = optimizer_.state()[parameter.unsafeGetTensorImpl()];
  if (!kept) {
    auto made = std::make_unique<FusedAdamParamState>();
    made->step(at::zeros({}, parameter.options().dtype(at::kFloat).requires_grad(false)));
    made->exp_avg(at::zeros_like(parameter));
    made->exp_avg_sq(at::zeros_like(parameter));
    kept = std::move(made);
  }
  auto& state = dynamic_cast<FusedAdamParamState&>(*kept);
  if (amsgrad && !state.max_exp_avg_sq().defined()) state.max_exp_avg_sq(at::zeros_like(parameter));
  state.exp_avg(laid_out(state.exp_avg(), name, "exp_avg"));
  state.exp_avg_sq(laid_out(state.exp_avg_sq(), name, "exp_avg_sq"));
  if (amsgrad) state.max_exp_avg_sq(laid_out(state.max_exp_avg_sq(), name, "max_exp_avg_sq"));
  return state;
}

void FusedAdamStep::count(Lists& lists, double steps) { at::_foreach_add_(lists.steps, steps); }

void FusedAdamStep::uncount(Lists& lists, const at::Tensor& found_inf) {
  at::_foreach_sub_(lists.steps, std::vector<at::Tensor>(lists.steps.size(), found_inf));
}

}  // namespace lockstep::optim
