// SPDX-License-Identifier: BSD-3-Clause
#include "ddp/gradient_hooks.h"

#include <torch/csrc/autograd/utils/lambda_post_hook.h>

namespace lockstep::ddp {

GradientHooks::GradientHooks(const std::vector<TrainedParameter>& parameters,
                             const std::function<void(std::size_t)>& on_ready) {
  using torch::autograd::variable_list;
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    auto accumulator = torch::autograd::impl::grad_accumulator(parameters[index].tensor);
    auto hook = std::make_unique<torch::autograd::utils::LambdaPostHook>(
        [on_ready, index](const variable_list& outputs, const variable_list&) {
          on_ready(index);
          return outputs;
        });
    const auto key = accumulator->add_post_hook(std::move(hook));
    hooks_.emplace_back(std::move(accumulator), key);
  }
}

GradientHooks::~GradientHooks() {
  for (auto& [accumulator, key] : hooks_) accumulator->del_post_hook(key);
}

}  // namespace lockstep::ddp
