// SPDX-License-Identifier: BSD-3-Clause
#include "optim/fused_steps.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

namespace lockstep::optim {
namespace {

using torch::optim::OptimizerParamGroup;

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
      at::_foreach_add_(call.lists.steps, 1.0);
      kernel(call.lists, rate_on(lr, call.device), grad_scale, found_inf);
      if (found_inf) {
        at::_foreach_sub_(call.lists.steps, std::vector<at::Tensor>(call.lists.steps.size(), *found_inf));
      }
      if (grad_scale) call.lists.gradients.copy_back();
    }
  }

 private:
  FusedAdamParamState& state_of(const ParameterName& name, bool amsgrad);

  FusedOptimizer& optimizer_;
  const char* name_;
  CallsOf<Lists> calls_;
};

void FusedAdamStep::gather(const torch::optim::OptimizerParamGroup& group, std::size_t index, bool amsgrad) {
  for (std::size_t i = 0; i < group.params().size(); ++i) {
    const ParameterName name{name_, index, i, group.params()[i]};
    if (!name.parameter.grad().defined()) continue;
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

void read_tensor(torch::serialize::InputArchive& archive, const char* key, at::Tensor& tensor) {
  c10::IValue value;
  if (archive.try_read(key, value)) tensor = value.toTensor();
}

// Traits of FusedAdam and FusedAdamW, but for `name` and `fused`: LibTorch's function.
template <typename Options, typename BaseOptions>
struct AdamTraits {
  using Base = BaseOptions;
  using State = FusedAdamParamState;

  static void check(const Options& options) {
    const auto* name = FusedTraits<Options>::name;
    check_at_least_zero(options.lr(), "lr", name);
    check_at_least_zero(options.eps(), "eps", name);
    check_at_least_zero(options.weight_decay(), "weight_decay", name);
    for (const auto beta : {std::get<0>(options.betas()), std::get<1>(options.betas())}) {
      if (beta >= 0 && beta < 1) continue;
      throw_error<ArgumentError>("{}: betas must be at least 0 and below 1, not {}", name, beta);
    }
  }

  static std::function<void()> prepare(FusedOptimizer& optimizer, const OptimizerParamGroup& group,
                                       std::size_t index, const Options& options) {
    const auto kernel = [&options](FusedAdamStep::Lists& lists, const auto& rate, const auto& grad_scale,
                                   const auto& found_inf) {
      const auto call = [&](const auto& lr) {
        FusedTraits<Options>::fused(lists.parameters, lists.gradients.list(), lists.exp_avgs,
                                    lists.exp_avg_sqs, lists.max_exp_avg_sqs, lists.steps, lr,
                                    std::get<0>(options.betas()), std::get<1>(options.betas()),
                                    options.weight_decay(), options.eps(), options.amsgrad(),
                                    options.maximize(), grad_scale, found_inf);
      };
      rate ? call(*rate) : call(options.lr());
    };
    const auto step = std::make_shared<FusedAdamStep>(optimizer, FusedTraits<Options>::name);
    step->gather(group, index, options.amsgrad());
    return [step, &options, kernel] { step->run(options.lr_tensor(), kernel); };
  }
};

}  // namespace

template <>
struct FusedTraits<FusedAdamOptions> : AdamTraits<FusedAdamOptions, torch::optim::AdamOptions> {
  static constexpr const char* name = "FusedAdam";
  static constexpr auto fused = [](auto&&... all) { at::_fused_adam_(std::forward<decltype(all)>(all)...); };
};

template <>
struct FusedTraits<FusedAdamWOptions> : AdamTraits<FusedAdamWOptions, torch::optim::AdamWOptions> {
  static constexpr const char* name = "FusedAdamW";
  static constexpr auto fused = [](auto&&... all) { at::_fused_adamw_(std::forward<decltype(all)>(all)...); };
};

void FusedAdamParamState::serialize(torch::serialize::OutputArchive& archive) const {
  archive.write("step", c10::IValue(step()));
  archive.write("exp_avg", c10::IValue(exp_avg()));
  archive.write("exp_avg_sq", c10::IValue(exp_avg_sq()));
  if (max_exp_avg_sq().defined()) archive.write("max_exp_avg_sq", c10::IValue(max_exp_avg_sq()));
}

// LibTorch's Adam and AdamW, whose archives fit as well, count in a number.
void FusedAdamParamState::serialize(torch::serialize::InputArchive& archive) {
  read_tensor(archive, "exp_avg", exp_avg());
  read_tensor(archive, "exp_avg_sq", exp_avg_sq());
  read_tensor(archive, "max_exp_avg_sq", max_exp_avg_sq());
  c10::IValue count;
  archive.read("step", count);
  const auto options = at::TensorOptions().dtype(at::kFloat).device(exp_avg().device());
  step(count.isInt() ? at::full({}, count.toInt(), options) : count.toTensor());
}

template class FusedOptimizerOf<FusedAdamOptions>;
template class FusedOptimizerOf<FusedAdamWOptions>;

namespace {

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
