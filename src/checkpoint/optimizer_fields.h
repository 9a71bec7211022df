// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/ops/full_like.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <lockstep/optim/fused_adam.h>
#include <lockstep/optim/fused_sgd.h>
#include <lockstep/serialize/value.h>

// What each optimizer keeps, under the names that Python has for it. `field(name, value)` is called with a
// reference to each hyper-parameter, or to each part of the state of one parameter; `of` may be const.
namespace lockstep::checkpointing {

struct SGDFields {
  using Optimizer = torch::optim::SGD;
  using Options = torch::optim::SGDOptions;
  using State = torch::optim::SGDParamState;
  static constexpr const char* name = "SGD";

  template <typename Of, typename Field>
  static void options(Of& of, Field field) {
    field("lr", of.lr());
    field("momentum", of.momentum());
    field("dampening", of.dampening());
    field("weight_decay", of.weight_decay());
    field("nesterov", of.nesterov());
  }
  template <typename Of, typename Field>
  static void state(Of& of, Field field) {
    field("momentum_buffer", of.momentum_buffer());
  }
  /// What Python's optimizer has besides, with the values that mean what C++ does.
  static Dict constants() {
    return {{"maximize", false}, {"foreach", None{}}, {"differentiable", false}, {"fused", None{}}};
  }
};

template <typename Optimizer_, typename Options_, typename State_, bool decoupled>
struct AdamFieldsOf {
  using Optimizer = Optimizer_;
  using Options = Options_;
  using State = State_;
  static constexpr const char* name = decoupled ? "AdamW" : "Adam";

  template <typename Of, typename Field>
  static void options(Of& of, Field field) {
    field("lr", of.lr());
    field("betas", of.betas());
    field("eps", of.eps());
    field("weight_decay", of.weight_decay());
    field("amsgrad", of.amsgrad());
  }
  template <typename Of, typename Field>
  static void state(Of& of, Field field) {
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

// Of a fused optimizer, which has what the other one has. A tensor as the rate is written as one; read is a
// number, which then comes into the tensor.
template <typename Plain, typename Optimizer_, typename Options_, typename State_>
struct FusedFieldsOf : Plain {
  using PlainOptions = typename Plain::Options;
  using Optimizer = Optimizer_;
  using Options = Options_;
  using State = State_;
  static constexpr bool fused = true;

  template <typename Of, typename Field>
  static void options(Of& of, Field field) {
    Plain::options(of, field);
    field("maximize", of.maximize());
    if constexpr (std::is_const_v<Of>) {
      if (of.is_lr_behind()) {
        field("lr", at::full_like(of.lr_tensor(), of.lr()));
      } else if (of.lr_tensor().defined()) {
        field("lr", of.lr_tensor());
      }
    }
  }
  static Dict constants() {
    Dict dict;
    for (const auto& [key, value] : Plain::constants()) {
      if (key.as_string() != "maximize") dict.set(key, value);
    }
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

struct RMSpropFields {
  using Optimizer = torch::optim::RMSprop;
  using Options = torch::optim::RMSpropOptions;
  using State = torch::optim::RMSpropParamState;
  static constexpr const char* name = "RMSprop";

  template <typename Of, typename Field>
  static void options(Of& of, Field field) {
    field("lr", of.lr());
    field("momentum", of.momentum());
    field("alpha", of.alpha());
    field("eps", of.eps());
    field("centered", of.centered());
    field("weight_decay", of.weight_decay());
  }
  template <typename Of, typename Field>
  static void state(Of& of, Field field) {
    field("step", of.step());
    field("square_avg", of.square_avg());
    field("momentum_buffer", of.momentum_buffer());
    field("grad_avg", of.grad_avg());
  }
  static Dict constants() {
    return {{"capturable", false}, {"foreach", None{}}, {"maximize", false}, {"differentiable", false}};
  }
};

struct AdagradFields {
  using Optimizer = torch::optim::Adagrad;
  using Options = torch::optim::AdagradOptions;
  using State = torch::optim::AdagradParamState;
  static constexpr const char* name = "Adagrad";

  template <typename Of, typename Field>
  static void options(Of& of, Field field) {
    field("lr", of.lr());
    field("lr_decay", of.lr_decay());
    field("eps", of.eps());
    field("weight_decay", of.weight_decay());
    field("initial_accumulator_value", of.initial_accumulator_value());
  }
  template <typename Of, typename Field>
  static void state(Of& of, Field field) {
    field("step", of.step());
    field("sum", of.sum());
  }
  static Dict constants() {
    return {{"foreach", None{}}, {"maximize", false}, {"differentiable", false}, {"fused", None{}}};
  }
};

struct LBFGSFields {
  using Optimizer = torch::optim::LBFGS;
  using Options = torch::optim::LBFGSOptions;
  using State = torch::optim::LBFGSParamState;
  static constexpr const char* name = "LBFGS";

  template <typename Of, typename Field>
  static void options(Of& of, Field field) {
    field("lr", of.lr());
    field("max_iter", of.max_iter());
    field("max_eval", of.max_eval());
    field("tolerance_grad", of.tolerance_grad());
    field("tolerance_change", of.tolerance_change());
    field("history_size", of.history_size());
    field("line_search_fn", of.line_search_fn());
  }
  template <typename Of, typename Field>
  static void state(Of& of, Field field) {
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
  static Dict constants() { return {}; }
};

}  // namespace lockstep::checkpointing
