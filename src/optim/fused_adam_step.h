// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <lockstep/optim/fused_adam.h>

#include "optim/fused_lists.h"

namespace lockstep::optim {

// What FusedAdam and FusedAdamW have in common.
class FusedAdamStep {
 public:
  struct Lists {
    std::vector<at::Tensor> parameters;
    GradientList gradients;
    std::vector<at::Tensor> exp_avgs;
    std::vector<at::Tensor> exp_avg_sqs;
    std::vector<at::Tensor> max_exp_avg_sqs;
    std::vector<at::Tensor> steps;
  };

  // `optimizer`: its name, for errors.
  FusedAdamStep(FusedOptimizer& optimizer, const char* name) : optimizer_(optimizer), name_(name) {}

  // Gathers the parameters of a group that have gradients, and makes the state of those that begin.
  void gather(const torch::optim::OptimizerParamGroup& group, std::size_t index, bool amsgrad);

  // Calls kernel(lists, lr, grad_scale, found_inf) for each device and type of what was gathered. `lr`: as a
  // tensor, or undefined.
  template <typename Kernel>
  void run(const at::Tensor& lr, const Kernel& kernel) {
    for (auto& call : calls_.all()) {
      const auto grad_scale = on_device(optimizer_.grad_scale(), call.device);
      const auto found_inf = on_device(optimizer_.found_inf(), call.device);
      count(call.lists, 1);
      kernel(call.lists, rate_on(lr, call.device), grad_scale, found_inf);
      if (found_inf) uncount(call.lists, *found_inf);
      if (grad_scale) call.lists.gradients.bring_back();
    }
  }

 private:
  void add(const ParameterName& name, bool amsgrad);
  FusedAdamParamState& state_of(const ParameterName& name, bool amsgrad);
  static void count(Lists& lists, double steps);
  static void uncount(Lists& lists, const at::Tensor& found_inf);

  FusedOptimizer& optimizer_;
  const char* name_;
  CallsOf<Lists> calls_;
};

}  // namespace lockstep::optim
