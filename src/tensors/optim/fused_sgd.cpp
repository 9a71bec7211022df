// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/zeros_like.h>

#include <lockstep/optim/fused.h>

#include "base/throw_error.h"
#include "optim/fused_lists.h"

namespace lockstep::optim {
namespace {

using torch::optim::OptimizerParamGroup;
using torch::optim::SGDParamState;

constexpr const char* kSgd = "FusedSGD";

struct SgdLists {
  std::vector<at::Tensor> parameters;
  GradientList gradients;
  std::vector<at::Tensor> momentum_buffers;
};

using States = std::remove_reference_t<decltype(std::declval<torch::optim::Optimizer>().state())>;

bool has_buffer(const States& states, const at::Tensor& parameter) {
  const auto found = states.find(parameter.unsafeGetTensorImpl());
  return found != states.end() &&
         dynamic_cast<const SGDParamState&>(*found->second).momentum_buffer().defined();
}

// A new buffer is zeros, although the kernel overwrites it, because found_inf may prevent that.
at::Tensor buffer_of(States& states, const ParameterName& name, bool first) {
  if (first) return at::zeros_like(name.parameter);
  auto& state = dynamic_cast<SGDParamState&>(*states.at(name.parameter.unsafeGetTensorImpl()));
  state.momentum_buffer(laid_out(state.momentum_buffer(), name, "momentum_buffer"));
  return state.momentum_buffer();
}

// Called after the kernel. A parameter with a buffer has taken its first step.
void keep_buffers(States& states, const SgdLists& lists) {
  for (std::size_t i = 0; i < lists.momentum_buffers.size(); ++i) {
    auto& kept = states[lists.parameters[i].unsafeGetTensorImpl()];
    if (!kept) kept = std::make_unique<SGDParamState>();
    dynamic_cast<SGDParamState&>(*kept).momentum_buffer(lists.momentum_buffers[i]);
  }
}

CallsOf<SgdLists> gather_sgd(States& states, const OptimizerParamGroup& group, std::size_t index,
                             bool with_momentum) {
  CallsOf<SgdLists> calls;
  for (std::size_t i = 0; i < group.params().size(); ++i) {
    const auto& parameter = group.params()[i];
    if (!parameter.grad().defined()) continue;
    const ParameterName name{kSgd, index, i, parameter};
    check_parameter(name);
    const bool first = with_momentum && !has_buffer(states, parameter);
    auto& lists = calls.at(parameter, first);
    lists.gradients.add(name);
    lists.parameters.push_back(parameter);
    if (with_momentum) lists.momentum_buffers.push_back(buffer_of(states, name, first));
  }
  return calls;
}

void step_sgd(FusedOptimizer& optimizer, const FusedSGDOptions& options,
              const CallsOf<SgdLists>::Call& call) {
  const auto& lists = call.lists;
  const auto scale = on_device(optimizer.grad_scale(), call.device);
  const auto found = on_device(optimizer.found_inf(), call.device);
  const auto kernel = [&](const auto& lr) {
    at::_fused_sgd_(lists.parameters, lists.gradients.list(), lists.momentum_buffers, options.weight_decay(),
                    options.momentum(), lr, options.dampening(), options.nesterov(), options.maximize(),
                    call.first, scale, found);
  };
  const auto rate = rate_on(options.lr_tensor(), call.device);
  rate ? kernel(*rate) : kernel(options.lr());
  if (call.first) keep_buffers(optimizer.state(), lists);
  if (scale) lists.gradients.copy_back();
}

}  // namespace

template <>
struct FusedTraits<FusedSGDOptions> {
  using Base = torch::optim::SGDOptions;
  using State = SGDParamState;
  static constexpr const char* name = kSgd;

  static void check(const FusedSGDOptions& options) {
    check_at_least_zero(options.lr(), "lr", name);
    check_at_least_zero(options.momentum(), "momentum", name);
    check_at_least_zero(options.weight_decay(), "weight_decay", name);
    if (!options.nesterov() || (options.momentum() > 0 && options.dampening() == 0)) return;
    throw_error<ArgumentError>("{}: nesterov needs a momentum above 0 and no dampening; these are {} and {}",
                               name, options.momentum(), options.dampening());
  }

  static std::function<void()> prepare(FusedOptimizer& optimizer, const OptimizerParamGroup& group,
                                       std::size_t index, const FusedSGDOptions& options) {
    const auto calls = std::make_shared<CallsOf<SgdLists>>(
        gather_sgd(optimizer.state(), group, index, options.momentum() != 0));
    return [&optimizer, &options, calls] {
      for (const auto& call : calls->all()) step_sgd(optimizer, options, call);
    };
  }
};

template class FusedOptimizerOf<FusedSGDOptions>;

}  // namespace lockstep::optim
