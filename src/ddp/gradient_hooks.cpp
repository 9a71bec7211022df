// SPDX-License-Identifier: BSD-3-Clause
#include "ddp/gradient_hooks.h"

#include <torch/csrc/autograd/function_hook.h>

namespace lockstep::ddp {
namespace {

using torch::autograd::variable_list;

class ReadyHook : public torch::autograd::FunctionPostHook {
 public:
  ReadyHook(const std::function<void(std::size_t)>& on_ready, std::size_t parameter)
      : on_ready_(on_ready), parameter_(parameter) {}

  variable_list operator()(const variable_list& outputs, const variable_list& /*inputs*/) override {
    on_ready_(parameter_);
    return outputs;
  }

 private:
  const std::function<void(std::size_t)>& on_ready_;
  std::size_t parameter_;
};

}  // namespace

GradientHooks::GradientHooks(const std::vector<TrainedParameter>& parameters,
                             std::function<void(std::size_t)> on_ready)
    : on_ready_(std::move(on_ready)) {
  for (std::size_t index = 0; index < parameters.size(); ++index) {
    auto accumulator = torch::autograd::impl::grad_accumulator(parameters[index].tensor);
    const auto key = accumulator->add_post_hook(std::make_unique<ReadyHook>(on_ready_, index));
    hooks_.emplace_back(std::move(accumulator), key);
  }
}

GradientHooks::~GradientHooks() {
  for (auto& [accumulator, key] : hooks_) accumulator->del_post_hook(key);
}

}  // namespace lockstep::ddp
