// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/ops/full_like.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <lockstep/optim/fused.h>
#include <lockstep/serialize/value.h>

// The options and state of each optimizer under Python's names. `field(name, value)` is called with a
// reference to each hyperparameter or each part of a parameter's state; `of` may be const.
namespace lockstep::state {

// state_dict() of the states that this rank has, which may be a part of them.
Dict states_of_rank(const torch::optim::Optimizer& optimizer);

template <typename Optimizer_, typename Options_, typename State_>
struct Types {
  using Optimizer = Optimizer_;
  using Options = Options_;
  using State = State_;
};

struct SGDFields : Types<torch::optim::SGD, torch::optim::SGDOptions, torch::optim::SGDParamState> {
  static constexpr const char* name = "SGD";

  static void options(auto& of, auto field) {
    field("lr", of.lr());
    field("momentum", of.momentum());
    field("dampening", of.dampening());
    field("weight_decay", of.weight_decay());
    field("nesterov", of.nesterov());
  }
  static void state(auto& of, auto field) { field("momentum_buffer", of.momentum_buffer()); }
  // Python's other options, with the values that match the behavior in C++.
  static Dict constants() {
    return {{"maximize", false}, {"foreach", None{}}, {"differentiable", false}, {"fused", None{}}};
  }
};

template <typename Optimizer_, typename Options_, typename State_, bool decoupled>
struct AdamFieldsOf : Types<Optimizer_, Options_, State_> {
  static constexpr const char* name = decoupled ? "AdamW" : "Adam";

  static void options(auto& of, auto field) {
    field("lr", of.lr());
    field("betas", of.betas());
    field("eps", of.eps());
    field("weight_decay", of.weight_decay());
    field("amsgrad", of.amsgrad());
  }
  static void state(auto& of, auto field) {
    field("step", of.step());
    field("exp_avg", of.exp_avg());
    field("exp_avg_sq", of.exp_avg_sq());
    field("max_exp_avg_sq", of.max_exp_avg_sq());
  }
  static Dict constants() {
    return {{"maximize", false},       {"foreach", None{}}, {"capturable", false},
            {"differentiable", false}, {"fused", None{}},   {"decoupled_weight_decay", decoupled}};
  }
};

using AdamFields =
    AdamFieldsOf<torch::optim::Adam, torch::optim::AdamOptions, torch::optim::AdamParamState, false>;
using AdamWFields =
    AdamFieldsOf<torch::optim::AdamW, torch::optim::AdamWOptions, torch::optim::AdamWParamState, true>;

// A fused optimizer has the fields of the plain one. A rate that is a tensor is written as a tensor and read
// as a number.
template <typename Plain, typename Optimizer_, typename Options_, typename State_>
struct FusedFieldsOf : Plain {
  using PlainOptions = typename Plain::Options;
  using Optimizer = Optimizer_;
  using Options = Options_;
  using State = State_;
  static constexpr bool fused = true;

  static void options(auto& of, auto field) {
    Plain::options(of, field);
    field("maximize", of.maximize());
    if constexpr (std::is_const_v<std::remove_reference_t<decltype(of)>>) {
      if (of.is_lr_tensor_stale()) {
        field("lr", at::full_like(of.lr_tensor(), of.lr()));
      } else if (of.lr_tensor().defined()) {
        field("lr", of.lr_tensor());
      }
    }
  }
  static Dict constants() {
    auto dict = Plain::constants();
    dict.erase("maximize");
    dict.set("fused", true);
    return dict;
  }
};

using FusedSGDFields =
    FusedFieldsOf<SGDFields, optim::FusedSGD, optim::FusedSGDOptions, torch::optim::SGDParamState>;
using FusedAdamFields =
    FusedFieldsOf<AdamFields, optim::FusedAdam, optim::FusedAdamOptions, optim::FusedAdamParamState>;
using FusedAdamWFields =
    FusedFieldsOf<AdamWFields, optim::FusedAdamW, optim::FusedAdamWOptions, optim::FusedAdamParamState>;

struct RMSpropFields
    : Types<torch::optim::RMSprop, torch::optim::RMSpropOptions, torch::optim::RMSpropParamState> {
  static constexpr const char* name = "RMSprop";

  static void options(auto& of, auto field) {
    field("lr", of.lr());
    field("momentum", of.momentum());
    field("alpha", of.alpha());
    field("eps", of.eps());
    field("centered", of.centered());
    field("weight_decay", of.weight_decay());
  }
  static void state(auto& of, auto field) {
    field("step", of.step());
    field("square_avg", of.square_avg());
    field("momentum_buffer", of.momentum_buffer());
    field("grad_avg", of.grad_avg());
  }
  static Dict constants() {
    return {{"capturable", false}, {"foreach", None{}}, {"maximize", false}, {"differentiable", false}};
  }
};

struct AdagradFields
    : Types<torch::optim::Adagrad, torch::optim::AdagradOptions, torch::optim::AdagradParamState> {
  static constexpr const char* name = "Adagrad";

  static void options(auto& of, auto field) {
    field("lr", of.lr());
    field("lr_decay", of.lr_decay());
    field("eps", of.eps());
    field("weight_decay", of.weight_decay());
    field("initial_accumulator_value", of.initial_accumulator_value());
  }
  static void state(auto& of, auto field) {
    field("step", of.step());
    field("sum", of.sum());
  }
  static Dict constants() {
    return {{"foreach", None{}}, {"maximize", false}, {"differentiable", false}, {"fused", None{}}};
  }
};

struct LBFGSFields : Types<torch::optim::LBFGS, torch::optim::LBFGSOptions, torch::optim::LBFGSParamState> {
  static constexpr const char* name = "LBFGS";

  static void options(auto& of, auto field) {
    field("lr", of.lr());
    field("max_iter", of.max_iter());
    field("max_eval", of.max_eval());
    field("tolerance_grad", of.tolerance_grad());
    field("tolerance_change", of.tolerance_change());
    field("history_size", of.history_size());
    field("line_search_fn", of.line_search_fn());
  }
  static void state(auto& of, auto field) {
    field("func_evals", of.func_evals());
    field("n_iter", of.n_iter());
    field("d", of.d());
    field("t", of.t());
    field("old_dirs", of.old_dirs());
    field("old_stps", of.old_stps());
    field("ro", of.ro());
    field("H_diag", of.H_diag());
    field("prev_flat_grad", of.prev_flat_grad());
    field("prev_loss", of.prev_loss());
    field("al", of.al());
  }
  // Of torch 2.15; earlier releases ignore it.
  static Dict constants() { return {{"maximize", false}}; }
};

}  // namespace lockstep::state
