// SPDX-License-Identifier: BSD-3-Clause
#include <limits>

#include "optim/optimizer_rules.h"

namespace lockstep::optim {
namespace {

at::Tensor with_decay(const at::Tensor& gradient, const at::Tensor& parameter, double weight_decay) {
  return weight_decay == 0 ? gradient : gradient.add(parameter, weight_decay);
}

at::Tensor counter_of(double value) { return at::scalar_tensor(value, at::TensorOptions(counter_dtype())); }

double root_mean_square(const at::Tensor& tensor) {
  const auto count = static_cast<double>(tensor.numel());
  return at::linalg_vector_norm(tensor, 2).item<double>() / std::pow(count, 0.5);
}

}  // namespace

template <>
struct Rules<AdadeltaOptions> {
  static constexpr const char* name = "Adadelta";

  static void visit_fields(AdadeltaOptions& options, Fields& fields) {
    fields("lr", options.lr);
    fields("rho", options.rho);
    fields("eps", options.eps);
    fields("weight_decay", options.weight_decay);
    fields.optional("maximize", options.maximize);
    python_only(fields);
  }
  static void check(const AdadeltaOptions& options, const Checks& checks) {
    checks.at_least_zero("lr", options.lr);
    checks.require(options.rho >= 0 && options.rho <= 1, "rho", options.rho, "0 to 1");
    checks.at_least_zero("eps", options.eps);
    checks.at_least_zero("weight_decay", options.weight_decay);
  }
  static void begin(NamedTensors& state, const at::Tensor& parameter, const at::Tensor&,
                    const AdadeltaOptions&) {
    state["step"] = zero_counter();
    state["square_avg"] = at::zeros_like(parameter);
    state["acc_delta"] = at::zeros_like(parameter);
  }
  static void update(const AdadeltaOptions& options, const Group<AdadeltaOptions>&,
                     const at::Tensor& parameter, const at::Tensor& given, NamedParamState& state) {
    next_step(state);
    const auto gradient = with_decay(given, parameter, options.weight_decay);
    const auto rho = options.rho;
    auto& square_avg = state.tensors.at("square_avg");
    auto& acc_delta = state.tensors.at("acc_delta");
    square_avg.mul_(rho).addcmul_(gradient, gradient, 1 - rho);
    const auto deviation = square_avg.add(options.eps).sqrt_();
    const auto delta = acc_delta.add(options.eps).sqrt_().div_(deviation).mul_(gradient);
    acc_delta.mul_(rho).addcmul_(delta, delta, 1 - rho);
    parameter.add_(delta, -options.lr);
  }
};

template <>
struct Rules<ASGDOptions> {
  static constexpr const char* name = "ASGD";

  static void visit_fields(ASGDOptions& options, Fields& fields) {
    fields("lr", options.lr);
    fields("lambd", options.lambd);
    fields("alpha", options.alpha);
    fields("t0", options.t0);
    fields("weight_decay", options.weight_decay);
    fields.optional("maximize", options.maximize);
    python_only(fields);
  }
  static void check(const ASGDOptions& options, const Checks& checks) {
    checks.at_least_zero("lr", options.lr);
    checks.at_least_zero("weight_decay", options.weight_decay);
  }
  static void begin(NamedTensors& state, const at::Tensor& parameter, const at::Tensor&,
                    const ASGDOptions& options) {
    const auto on_device = [&](const at::Tensor& counter) { return counter.to(parameter.device()); };
    state["step"] = on_device(zero_counter());
    state["eta"] = on_device(counter_of(options.lr));
    state["mu"] = on_device(counter_of(1));
    state["ax"] = at::zeros_like(parameter);
  }
  static void update(const ASGDOptions& options, const Group<ASGDOptions>&, const at::Tensor& parameter,
                     const at::Tensor& given, NamedParamState& state) {
    const auto step = next_step(state);
    const auto gradient = with_decay(given, parameter, options.weight_decay);
    auto& eta = state.tensors.at("eta");
    auto& mu = state.tensors.at("mu");
    auto& ax = state.tensors.at("ax");
    const auto rate = eta.item<double>();
    parameter.mul_(1 - options.lambd * rate);
    parameter.add_(gradient, -rate);
    if (mu.item<double>() == 1) {
      ax.copy_(parameter);
    } else {
      ax.add_(parameter.sub(ax).mul_(mu));
    }
    eta.copy_(counter_of(options.lr / std::pow(1 + options.lambd * options.lr * step, options.alpha)));
    mu.copy_(counter_of(1 / std::max(1.0, step - options.t0)));
  }
};

template <>
struct Rules<RpropOptions> {
  static constexpr const char* name = "Rprop";

  static void visit_fields(RpropOptions& options, Fields& fields) {
    fields("lr", options.lr);
    fields("etas", options.etas);
    fields("step_sizes", options.step_sizes);
    fields.optional("maximize", options.maximize);
    python_only(fields);
  }
  static void check(const RpropOptions& options, const Checks& checks) {
    const auto [minus, plus] = options.etas;
    checks.at_least_zero("lr", options.lr);
    checks.require(minus > 0 && minus < 1, "the first of etas", minus, "above 0 and below 1");
    checks.require(plus > 1, "the second of etas", plus, "above 1");
  }
  static void begin(NamedTensors& state, const at::Tensor& parameter, const at::Tensor& gradient,
                    const RpropOptions& options) {
    state["step"] = zero_counter();
    state["prev"] = at::zeros_like(parameter);
    state["step_size"] = at::full_like(gradient, options.lr);
  }
  static void update(const RpropOptions& options, const Group<RpropOptions>&, const at::Tensor& parameter,
                     const at::Tensor& given, NamedParamState& state) {
    next_step(state);
    const auto [minus, plus] = options.etas;
    auto& previous = state.tensors.at("prev");
    auto& step_size = state.tensors.at("step_size");
    const auto sign = given.mul(previous).sign();
    sign.masked_fill_(sign.gt(0), plus);
    sign.masked_fill_(sign.lt(0), minus);
    sign.masked_fill_(sign.eq(0), 1);
    step_size.mul_(sign).clamp_(std::get<0>(options.step_sizes), std::get<1>(options.step_sizes));
    const auto gradient = given.masked_fill(sign.eq(minus), 0);
    parameter.addcmul_(gradient.sign(), step_size, -1);
    previous.copy_(gradient);
  }
};

template <>
struct Rules<AdafactorOptions> {
  static constexpr const char* name = "Adafactor";
  static constexpr bool needs_whole_parameters = true;

  static void visit_fields(AdafactorOptions& options, Fields& fields) {
    fields("lr", options.lr);
    fields("beta2_decay", options.beta2_decay);
    fields("eps", options.eps);
    fields("d", options.d);
    fields("weight_decay", options.weight_decay);
    fields.optional("maximize", options.maximize);
    fields.constant("foreach", None());
  }
  static void check(const AdafactorOptions& options, const Checks& checks) {
    const auto [first, second] = options.eps;
    checks.at_least_zero("lr", options.lr);
    checks.require(options.beta2_decay <= 0, "beta2_decay", options.beta2_decay, "0 or less");
    checks.at_least_zero("the first of eps", first.value_or(0));
    checks.at_least_zero("the second of eps", second);
    checks.require(options.d >= 1, "d", options.d, "1 or more");
    checks.at_least_zero("weight_decay", options.weight_decay);
  }
  static void begin(NamedTensors& state, const at::Tensor&, const at::Tensor& gradient,
                    const AdafactorOptions&) {
    state["step"] = zero_counter();
    if (gradient.dim() < 2) {
      state["variance"] = at::zeros_like(gradient);
      return;
    }
    const auto zeros = [&gradient](std::int64_t dim) {
      auto sizes = gradient.sizes().vec();
      sizes[sizes.size() - static_cast<std::size_t>(dim)] = 1;
      return gradient.new_zeros(sizes);
    };
    state["row_var"] = zeros(1);
    state["col_var"] = zeros(2);
  }
  static void update(const AdafactorOptions& options, const Group<AdafactorOptions>& group,
                     const at::Tensor& parameter, const at::Tensor& gradient, NamedParamState& state) {
    const auto step = next_step(state);
    const auto [given_eps, least_scale] = options.eps;
    const auto eps = given_eps.value_or(epsilon_of(group.first.scalar_type()));
    const auto share = std::pow(step, options.beta2_decay);  // of this step in the averages
    const auto rho = std::min(options.lr, 1 / std::pow(step, 0.5));
    const auto alpha = std::max(least_scale, root_mean_square(parameter)) * rho;
    if (options.weight_decay != 0) parameter.mul_(1 - options.lr * options.weight_decay);
    auto update = variance_estimate(gradient, state.tensors, share, eps).clamp_min_(eps * eps).rsqrt_();
    update.mul_(gradient);
    const auto count = std::pow(static_cast<double>(update.numel()), 0.5);
    const auto norm = at::linalg_vector_norm(update, 2).item<double>();
    parameter.add_(update, -alpha / std::max(1.0, norm / (count * options.d)));
  }

 private:
  static double epsilon_of(at::ScalarType dtype) {
    if (dtype == at::kDouble) return std::numeric_limits<double>::epsilon();
    if (dtype == at::kHalf) return std::numeric_limits<at::Half>::epsilon();
    if (dtype == at::kBFloat16) return std::numeric_limits<at::BFloat16>::epsilon();
    return std::numeric_limits<float>::epsilon();
  }
  static at::Tensor variance_estimate(const at::Tensor& gradient, NamedTensors& state, double share,
                                      double eps) {
    if (gradient.dim() < 2) {
      auto& variance = state.at("variance");
      return variance.lerp_(gradient * gradient, share).clone();
    }
    const auto mean_square = [&gradient](std::int64_t dim) {
      return at::linalg_vector_norm(gradient, 2, dim, /*keepdim=*/true).square_().div_(gradient.size(dim));
    };
    auto& rows = state.at("row_var").lerp_(mean_square(-1), share);
    auto& columns = state.at("col_var").lerp_(mean_square(-2), share);
    return rows.matmul(columns).div_(rows.mean(-2, /*keepdim=*/true).clamp_min_(eps));
  }
};

template class GroupOptionsOf<AdadeltaOptions>;
template class GroupOptionsOf<ASGDOptions>;
template class GroupOptionsOf<RpropOptions>;
template class GroupOptionsOf<AdafactorOptions>;
template class OptimizerOf<AdadeltaOptions>;
template class OptimizerOf<ASGDOptions>;
template class OptimizerOf<RpropOptions>;
template class OptimizerOf<AdafactorOptions>;

}  // namespace lockstep::optim
