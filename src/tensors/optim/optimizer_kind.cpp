// SPDX-License-Identifier: BSD-3-Clause
#include "optim/optimizer_kind.h"

#include <array>

#include <ATen/ops/full_like.h>
#include <c10/util/Type.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <lockstep/optim/fused.h>
#include <lockstep/optim/optimizers.h>

#include "base/throw_error.h"

// The fields are in Python's order. Constants are Python's other options, with the values that match the
// behavior in C++.
namespace lockstep::optim {
namespace {

using namespace torch::optim;

template <typename Options>
constexpr bool kIsFused = std::is_base_of_v<FusedOptions, Options>;

// A rate that is a tensor is written as a tensor and read as a number.
void visit_rate(auto& of, Fields& fields) {
  if constexpr (kIsFused<std::remove_reference_t<decltype(of)>>) {
    const auto& rate = of.lr_tensor();
    if (fields.writing() && rate.defined())
      return fields.constant("lr", of.is_lr_tensor_stale() ? at::full_like(rate, of.lr()) : rate);
  }
  fields("lr", of.lr());
}

void refuse_maximize(Fields& fields) {
  fields.constant("maximize", false);
  fields.read("maximize", [](const Value& value) {
    if (!value.is<bool>() || !value.as_bool()) return;
    throw_error<CheckpointError>(
        "the checkpoint's optimizer has maximize=True, which LibTorch's optimizers do not support: negate "
        "the loss");
  });
}

void visit_maximize(auto& of, Fields& fields) {
  if constexpr (kIsFused<std::remove_reference_t<decltype(of)>>) {
    if (fields.reads_all()) of.maximize() = false;  // older versions of Python's optimizers do not have it
    fields.optional("maximize", of.maximize());
  } else {
    refuse_maximize(fields);
  }
}

template <typename Options>
Value fused_value() {
  return kIsFused<Options> ? Value(true) : Value(None());
}

template <std::derived_from<SGDOptions> Options>
void visit(Options& of, Fields& fields) {
  visit_rate(of, fields);
  fields("momentum", of.momentum());
  fields("dampening", of.dampening());
  fields("weight_decay", of.weight_decay());
  fields("nesterov", of.nesterov());
  visit_maximize(of, fields);
  fields.constant("foreach", None());
  fields.constant("differentiable", false);
  fields.constant("fused", fused_value<Options>());
}

void visit(SGDParamState& of, Fields& fields) { fields.tensor("momentum_buffer", of.momentum_buffer()); }

// Only this entry distinguishes Adam from AdamW. Older versions of PyTorch do not have it.
void visit_decoupled(bool decoupled, Fields& fields) {
  fields.constant("decoupled_weight_decay", decoupled);
  fields.read("decoupled_weight_decay", [decoupled](const Value& value) {
    if (!value.is<bool>() || value.as_bool() == decoupled) return;
    throw_error<CheckpointError>("the checkpoint is of {}, but the optimizer is {}",
                                 decoupled ? "Adam" : "AdamW", decoupled ? "AdamW" : "Adam");
  });
}

template <typename Options>
  requires std::derived_from<Options, AdamOptions> || std::derived_from<Options, AdamWOptions>
void visit(Options& of, Fields& fields) {
  visit_rate(of, fields);
  fields("betas", of.betas());
  fields("eps", of.eps());
  fields("weight_decay", of.weight_decay());
  fields("amsgrad", of.amsgrad());
  visit_maximize(of, fields);
  fields.constant("foreach", None());
  fields.constant("capturable", false);
  fields.constant("differentiable", false);
  fields.constant("fused", fused_value<Options>());
  visit_decoupled(std::is_base_of_v<AdamWOptions, Options>, fields);
}

template <typename State>
  requires std::is_same_v<State, AdamParamState> || std::is_same_v<State, AdamWParamState> ||
           std::is_same_v<State, FusedAdamParamState>
void visit(State& of, Fields& fields) {
  fields.steps("step", of.step());
  fields.tensor("exp_avg", of.exp_avg());
  fields.tensor("exp_avg_sq", of.exp_avg_sq());
  fields.tensor("max_exp_avg_sq", of.max_exp_avg_sq());
}

void visit(RMSpropOptions& of, Fields& fields) {
  fields("lr", of.lr());
  fields("momentum", of.momentum());
  fields("alpha", of.alpha());
  fields("eps", of.eps());
  fields("centered", of.centered());
  fields("weight_decay", of.weight_decay());
  fields.constant("capturable", false);
  fields.constant("foreach", None());
  refuse_maximize(fields);
  fields.constant("differentiable", false);
}

void visit(RMSpropParamState& of, Fields& fields) {
  fields.steps("step", of.step());
  fields.tensor("square_avg", of.square_avg());
  fields.tensor("momentum_buffer", of.momentum_buffer());
  fields.tensor("grad_avg", of.grad_avg());
}

void visit(AdagradOptions& of, Fields& fields) {
  fields("lr", of.lr());
  fields("lr_decay", of.lr_decay());
  fields("eps", of.eps());
  fields("weight_decay", of.weight_decay());
  fields("initial_accumulator_value", of.initial_accumulator_value());
  fields.constant("foreach", None());
  refuse_maximize(fields);
  fields.constant("differentiable", false);
  fields.constant("fused", None());
}

void visit(AdagradParamState& of, Fields& fields) {
  fields.steps("step", of.step());
  fields.tensor("sum", of.sum());
}

void visit(LBFGSOptions& of, Fields& fields) {
  fields("lr", of.lr());
  fields.count("max_iter", of.max_iter());
  // Python computes it in the constructor and expects a number.
  auto max_eval = of.max_eval();
  if (fields.writing() && !max_eval) max_eval = of.max_iter() * 5 / 4;
  fields("max_eval", max_eval);
  if (!fields.writing()) of.max_eval(max_eval);
  fields("tolerance_grad", of.tolerance_grad());
  fields("tolerance_change", of.tolerance_change());
  fields.count("history_size", of.history_size());
  fields("line_search_fn", of.line_search_fn());
  refuse_maximize(fields);  // of torch 2.15; earlier releases ignore it
}

// Its tensors are of all parameters together, and its counts are plain numbers. Python's has no `t` and no
// `prev_loss` when it found nothing to do.
void visit(LBFGSParamState& of, Fields& fields) {
  fields.count("func_evals", of.func_evals());
  fields.count("n_iter", of.n_iter());
  fields.tensor("d", of.d(), /*shaped_like_parameter=*/false);
  fields.optional("t", of.t());
  fields.tensors("old_dirs", of.old_dirs());
  fields.tensors("old_stps", of.old_stps());
  fields.tensors("ro", of.ro());
  fields.tensor("H_diag", of.H_diag(), /*shaped_like_parameter=*/false);
  fields.tensor("prev_flat_grad", of.prev_flat_grad(), /*shaped_like_parameter=*/false);
  fields.optional("prev_loss", of.prev_loss());
  fields.tensors("al", of.al());
}

// A group may have options of any class. A fused optimizer also accepts LibTorch's.
template <typename Own, typename Plain>
std::unique_ptr<OptimizerOptions> options_of(const Optimizer& optimizer, std::size_t group) {
  const auto& options = optimizer.param_groups()[group].options();
  if (const auto* own = dynamic_cast<const Own*>(&options)) return std::make_unique<Own>(*own);
  if (const auto* plain = dynamic_cast<const Plain*>(&options)) return std::make_unique<Own>(*plain);
  throw_error<ArgumentError>("group {} of the optimizer has the options of another kind, {}; give it {}",
                             group, c10::demangle(typeid(options).name()), c10::demangle(typeid(Own).name()));
}

template <typename Kind, typename State, typename Own, typename Plain = Own>
constexpr OptimizerKind kind() {
  return {
      .includes = [](const Optimizer& optimizer) { return dynamic_cast<const Kind*>(&optimizer) != nullptr; },
      .options = options_of<Own, Plain>,
      .new_state = [](const Optimizer&, const at::Tensor&, const OptimizerOptions&)
          -> std::unique_ptr<OptimizerParamState> { return std::make_unique<State>(); },
      .visit_state = [](OptimizerParamState& state,
                        Fields& fields) { visit(static_cast<State&>(state), fields); }};
}

template <typename... Options>
bool visit_first(OptimizerOptions& options, Fields& fields) {
  const auto visit_as = [&](auto* own) {
    if (own != nullptr) visit(*own, fields);
    return own != nullptr;
  };
  return (visit_as(dynamic_cast<Options*>(&options)) || ...);
}

}  // namespace

// Those of optim/optimizers.h, which describe themselves.
struct NamedKind {
  static constexpr OptimizerKind value{
      .includes =
          [](const Optimizer& optimizer) {
            return dynamic_cast<const NamedOptimizer*>(&optimizer) != nullptr;
          },
      .options =
          [](const Optimizer& optimizer, std::size_t group) {
            const auto& options = optimizer.param_groups()[group].options();
            static_cast<const NamedOptimizer&>(optimizer).check_kind(options);
            return options.clone();
          },
      .new_state = [](const Optimizer& optimizer, const at::Tensor& parameter,
                      const OptimizerOptions& options) -> std::unique_ptr<OptimizerParamState> {
        return static_cast<const NamedOptimizer&>(optimizer).new_state(parameter, options);
      },
      .visit_state =
          [](OptimizerParamState& state, Fields& fields) {
            fields.named_tensors(static_cast<NamedParamState&>(state).tensors);
          }};
  static void visit_options(NamedOptions& options, Fields& fields) { options.visit_fields(fields); }
};

const OptimizerKind& kind_of(const Optimizer& optimizer) {
  static constexpr std::array kKinds{kind<torch::optim::SGD, SGDParamState, SGDOptions>(),
                                     kind<torch::optim::AdamW, AdamWParamState, AdamWOptions>(),
                                     kind<torch::optim::Adam, AdamParamState, AdamOptions>(),
                                     kind<torch::optim::RMSprop, RMSpropParamState, RMSpropOptions>(),
                                     kind<torch::optim::Adagrad, AdagradParamState, AdagradOptions>(),
                                     kind<torch::optim::LBFGS, LBFGSParamState, LBFGSOptions>(),
                                     kind<FusedSGD, SGDParamState, FusedSGDOptions, SGDOptions>(),
                                     kind<FusedAdamW, FusedAdamParamState, FusedAdamWOptions, AdamWOptions>(),
                                     kind<FusedAdam, FusedAdamParamState, FusedAdamOptions, AdamOptions>(),
                                     NamedKind::value};
  for (const auto& each : kKinds)
    if (each.includes(optimizer)) return each;
  throw_error<ArgumentError>(
      "state dicts are supported for the optimizers SGD, Adam, AdamW (each also fused), RMSprop, "
      "Adagrad, LBFGS and those of optim/optimizers.h; this is {}",
      c10::demangle(typeid(optimizer).name()));
}

bool visit_options(OptimizerOptions& options, Fields& fields) {
  if (auto* named = dynamic_cast<NamedOptions*>(&options))
    return NamedKind::visit_options(*named, fields), true;
  return visit_first<FusedSGDOptions, FusedAdamOptions, FusedAdamWOptions, SGDOptions, AdamOptions,
                     AdamWOptions, RMSpropOptions, AdagradOptions, LBFGSOptions>(options, fields);
}

}  // namespace lockstep::optim
