// SPDX-License-Identifier: BSD-3-Clause
#include "optim/optimizer_rules.h"

namespace lockstep::optim {
namespace {

void begin_moments(NamedTensors& state, const at::Tensor& parameter, const char* second) {
  state["step"] = zero_counter();
  state["exp_avg"] = at::zeros_like(parameter);
  state[second] = at::zeros_like(parameter);
}

// Applies weight decay, to the parameter or to the gradient that it returns.
at::Tensor decayed(const auto& options, const at::Tensor& parameter, const at::Tensor& gradient) {
  if (options.weight_decay == 0) return gradient;
  if (!options.decoupled_weight_decay) return gradient.add(parameter, options.weight_decay);
  parameter.mul_(1 - options.lr * options.weight_decay);
  return gradient;
}

void update_moments(NamedTensors& state, const at::Tensor& gradient, const Betas& betas) {
  const auto [beta1, beta2] = betas;
  state.at("exp_avg").lerp_(gradient, 1 - beta1);
  state.at("exp_avg_sq").mul_(beta2).addcmul_(gradient, gradient, 1 - beta2);
}

void check_common(const auto& options, const Checks& checks) {
  checks.at_least_zero("lr", options.lr);
  checks.betas(options.betas);
  checks.at_least_zero("eps", options.eps);
  if constexpr (requires { options.weight_decay; })
    checks.at_least_zero("weight_decay", options.weight_decay);
}

}  // namespace

template <>
struct Rules<NAdamOptions> {
  static constexpr const char* name = "NAdam";

  static void visit_fields(NAdamOptions& options, Fields& fields) {
    fields("lr", options.lr);
    fields("betas", options.betas);
    fields("eps", options.eps);
    fields("weight_decay", options.weight_decay);
    fields("momentum_decay", options.momentum_decay);
    fields.optional("decoupled_weight_decay", options.decoupled_weight_decay);
    fields.optional("maximize", options.maximize);
    python_only(fields);
  }
  static void check(const NAdamOptions& options, const Checks& checks) {
    check_common(options, checks);
    checks.at_least_zero("momentum_decay", options.momentum_decay);
  }
  static void begin(NamedTensors& state, const at::Tensor& parameter, const at::Tensor&,
                    const NAdamOptions&) {
    begin_moments(state, parameter, "exp_avg_sq");
    state["mu_product"] = at::ones({}, at::TensorOptions(counter_dtype()));
  }
  static void update(const NAdamOptions& options, const Group<NAdamOptions>&, const at::Tensor& parameter,
                     const at::Tensor& given, NamedParamState& state) {
    const auto [beta1, beta2] = options.betas;
    const auto step = next_step(state);
    const auto gradient = decayed(options, parameter, given);
    const auto mu_at = [&, beta1 = beta1](double at_step) {
      return beta1 * (1.0 - 0.5 * std::pow(0.96, at_step * options.momentum_decay));
    };
    const auto mu = mu_at(step);
    const auto mu_next = mu_at(step + 1);
    const auto product = state.tensors.at("mu_product").mul_(mu).item<double>();
    update_moments(state.tensors, gradient, options.betas);
    const auto denominator =
        state.tensors.at("exp_avg_sq").div(1 - std::pow(beta2, step)).sqrt().add_(options.eps);
    parameter.addcdiv_(gradient, denominator, -options.lr * (1.0 - mu) / (1.0 - product));
    parameter.addcdiv_(state.tensors.at("exp_avg"), denominator,
                       -options.lr * mu_next / (1.0 - product * mu_next));
  }
};

template <>
struct Rules<RAdamOptions> {
  static constexpr const char* name = "RAdam";

  static void visit_fields(RAdamOptions& options, Fields& fields) {
    fields("lr", options.lr);
    fields("betas", options.betas);
    fields("eps", options.eps);
    fields("weight_decay", options.weight_decay);
    fields.optional("decoupled_weight_decay", options.decoupled_weight_decay);
    fields.optional("maximize", options.maximize);
    python_only(fields);
  }
  static void check(const RAdamOptions& options, const Checks& checks) { check_common(options, checks); }
  static void begin(NamedTensors& state, const at::Tensor& parameter, const at::Tensor&,
                    const RAdamOptions&) {
    begin_moments(state, parameter, "exp_avg_sq");
  }
  static void update(const RAdamOptions& options, const Group<RAdamOptions>&, const at::Tensor& parameter,
                     const at::Tensor& given, NamedParamState& state) {
    const auto [beta1, beta2] = options.betas;
    const auto step = next_step(state);
    const auto gradient = decayed(options, parameter, given);
    update_moments(state.tensors, gradient, options.betas);
    const auto correction2 = 1 - std::pow(beta2, step);
    const auto rho_inf = 2 / (1 - beta2) - 1;
    const auto rho = rho_inf - 2 * step * std::pow(beta2, step) / correction2;
    auto change = state.tensors.at("exp_avg").div(1 - std::pow(beta1, step)).mul(options.lr);
    if (rho > 5.0) {
      const auto rectification =
          std::pow((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho), 0.5);
      const auto root = state.tensors.at("exp_avg_sq").sqrt().add_(options.eps);
      change = change.mul(root.reciprocal().mul(std::pow(correction2, 0.5))).mul(rectification);
    }
    parameter.add_(change, -1.0);
  }
};

template <>
struct Rules<AdamaxOptions> {
  static constexpr const char* name = "Adamax";

  static void visit_fields(AdamaxOptions& options, Fields& fields) {
    fields("lr", options.lr);
    fields("betas", options.betas);
    fields("eps", options.eps);
    fields("weight_decay", options.weight_decay);
    fields.optional("maximize", options.maximize);
    python_only(fields);
  }
  static void check(const AdamaxOptions& options, const Checks& checks) { check_common(options, checks); }
  static void begin(NamedTensors& state, const at::Tensor& parameter, const at::Tensor&,
                    const AdamaxOptions&) {
    begin_moments(state, parameter, "exp_inf");
  }
  static void update(const AdamaxOptions& options, const Group<AdamaxOptions>&, const at::Tensor& parameter,
                     const at::Tensor& given, NamedParamState& state) {
    const auto [beta1, beta2] = options.betas;
    const auto step = next_step(state);
    auto gradient = given;
    if (options.weight_decay != 0) gradient = gradient.add(parameter, options.weight_decay);
    auto& exp_avg = state.tensors.at("exp_avg");
    auto& exp_inf = state.tensors.at("exp_inf");
    exp_avg.lerp_(gradient, 1 - beta1);
    at::maximum_out(exp_inf, exp_inf.mul_(beta2), gradient.abs().add_(options.eps));
    parameter.addcdiv_(exp_avg, exp_inf, -(options.lr / (1 - std::pow(beta1, step))));
  }
};

template <>
struct Rules<SparseAdamOptions> {
  static constexpr const char* name = "SparseAdam";
  static constexpr bool sparse = true;

  static void visit_fields(SparseAdamOptions& options, Fields& fields) {
    fields("lr", options.lr);
    fields("betas", options.betas);
    fields("eps", options.eps);
    fields.optional("maximize", options.maximize);
  }
  static void check(const SparseAdamOptions& options, const Checks& checks) {
    check_common(options, checks);
    checks.require(options.lr > 0, "lr", options.lr, "above 0");
    checks.require(options.eps > 0, "eps", options.eps, "above 0");
  }
  static void begin(NamedTensors& state, const at::Tensor& parameter, const at::Tensor&,
                    const SparseAdamOptions&) {
    begin_moments(state, parameter, "exp_avg_sq");
    state["step"] = at::zeros({}, at::kLong);
  }
  static void update(const SparseAdamOptions& options, const Group<SparseAdamOptions>&,
                     const at::Tensor& parameter, const at::Tensor& given, NamedParamState& state) {
    const auto [beta1, beta2] = options.betas;
    const auto step = next_step(state);
    const auto gradient = given.coalesce();
    const auto values = gradient._values();
    if (values.numel() == 0) return;
    const auto sparse_of = [&gradient](const at::Tensor& some) {
      return at::sparse_coo_tensor(gradient._indices(), some, gradient.sizes());
    };
    auto& exp_avg = state.tensors.at("exp_avg");
    const auto old_first = exp_avg.sparse_mask(gradient)._values();
    const auto first = values.sub(old_first).mul_(1 - beta1);
    exp_avg.add_(sparse_of(first));
    auto& exp_avg_sq = state.tensors.at("exp_avg_sq");
    const auto old_second = exp_avg_sq.sparse_mask(gradient)._values();
    const auto second = values.pow(2).sub_(old_second).mul_(1 - beta2);
    exp_avg_sq.add_(sparse_of(second));
    const auto numerator = first.add_(old_first);
    const auto denominator = second.add_(old_second).sqrt_().add_(options.eps);
    const auto step_size = options.lr * std::sqrt(1 - std::pow(beta2, step)) / (1 - std::pow(beta1, step));
    parameter.add_(sparse_of(numerator.div_(denominator).mul(-step_size)));
  }
};

template class GroupOptionsOf<NAdamOptions>;
template class GroupOptionsOf<RAdamOptions>;
template class GroupOptionsOf<AdamaxOptions>;
template class GroupOptionsOf<SparseAdamOptions>;
template class OptimizerOf<NAdamOptions>;
template class OptimizerOf<RAdamOptions>;
template class OptimizerOf<AdamaxOptions>;
template class OptimizerOf<SparseAdamOptions>;

}  // namespace lockstep::optim
