// SPDX-License-Identifier: BSD-3-Clause
#include "base/throw_error.h"
#include "optim/optimizer_rules.h"

namespace lockstep::optim {
namespace {

at::Tensor l2_norm(const at::Tensor& tensor) { return at::linalg_vector_norm(tensor, 2); }

// 1 where one of the norms is 0.
at::Tensor or_one(const at::Tensor& ratio, const at::Tensor& weight_norm, const at::Tensor& gradient_norm) {
  return at::where(weight_norm > 0, at::where(gradient_norm > 0, ratio, 1.0), 1.0);
}

at::Tensor orthogonal(const at::Tensor& matrix, const MuonOptions& options) {
  const auto [a, b, c] = options.ns_coefficients;
  const bool is_tall = matrix.size(0) > matrix.size(1);
  auto result = matrix.to(at::kBFloat16);
  if (is_tall) result = result.t();
  result.div_(l2_norm(result).clamp_min(options.eps));
  for (std::int64_t i = 0; i < options.ns_steps; ++i) {
    const auto gram = result.matmul(result.t());
    const auto polynomial = at::addmm(gram, gram, gram, b, c);
    result = at::addmm(result, polynomial, result, a);
  }
  return is_tall ? result.t() : result;
}

double adjusted_lr(const MuonOptions& options, const at::Tensor& parameter) {
  const auto rows = static_cast<double>(parameter.size(0));
  const auto columns = static_cast<double>(parameter.size(1));
  const bool as_adamw = options.adjust_lr_fn == MuonAdjustment::match_rms_adamw;
  return options.lr *
         (as_adamw ? 0.2 * std::sqrt(std::max(rows, columns)) : std::sqrt(std::max(1.0, rows / columns)));
}

}  // namespace

template <>
struct Rules<MuonOptions> {
  static constexpr const char* name = "Muon";
  static constexpr bool needs_whole_parameters = true;

  static void visit_fields(MuonOptions& options, Fields& fields) {
    fields("lr", options.lr);
    fields("weight_decay", options.weight_decay);
    fields("momentum", options.momentum);
    fields("nesterov", options.nesterov);
    fields("ns_coefficients", options.ns_coefficients);
    fields("eps", options.eps);
    fields("ns_steps", options.ns_steps);
    fields("adjust_lr_fn", options.adjust_lr_fn);
  }
  static void check(const MuonOptions& options, const Checks& checks) {
    checks.at_least_zero("lr", options.lr);
    checks.at_least_zero("momentum", options.momentum);
    checks.at_least_zero("weight_decay", options.weight_decay);
    checks.require(options.ns_steps < 100, "ns_steps", options.ns_steps, "below 100");
  }
  static void check_parameter(const at::Tensor& parameter) {
    if (parameter.dim() == 2) return;
    throw_error<ArgumentError>(
        "Muon: a parameter has {} dimensions, not 2; give it to another optimizer, such as AdamW",
        parameter.dim());
  }
  static void begin(NamedTensors& state, const at::Tensor&, const at::Tensor& gradient, const MuonOptions&) {
    state["momentum_buffer"] = at::zeros_like(gradient);
  }
  static void update(const MuonOptions& options, const Group<MuonOptions>&, const at::Tensor& parameter,
                     const at::Tensor& gradient, NamedParamState& state) {
    auto& buffer = state.tensors.at("momentum_buffer");
    buffer.lerp_(gradient, 1 - options.momentum);
    const auto update = options.nesterov ? gradient.lerp(buffer, options.momentum) : buffer;
    const auto change = orthogonal(update, options);
    parameter.mul_(1 - options.lr * options.weight_decay);
    parameter.add_(change, -adjusted_lr(options, parameter));
  }
};

template <>
struct Rules<LambOptions> {
  static constexpr const char* name = "Lamb";
  static constexpr bool needs_whole_parameters = true;

  static void visit_fields(LambOptions& options, Fields& fields) {
    fields("lr", options.lr);
    fields("bias_correction", options.bias_correction);
    fields("betas", options.betas);
    fields("eps", options.eps);
    fields("weight_decay", options.weight_decay);
    fields("grad_averaging", options.grad_averaging);
    fields("max_grad_norm", options.max_grad_norm);
    fields("trust_clip", options.trust_clip);
    fields("always_adapt", options.always_adapt);
    fields.optional("caution", options.caution);
    fields.optional("decoupled_decay", options.decoupled_decay);
    fields.optional("corrected_weight_decay", options.corrected_weight_decay);
    fields.optional("max_lr_snapshot", options.max_lr_snapshot);
    fields.constant("foreach", None());
    if (options.step > 0) fields.constant("step", at::scalar_tensor(options.step, at::kFloat));
    fields.read("step", [&](const Value& count) {
      options.step = static_cast<std::int64_t>(serialize::number_of(count));
    });
  }
  static void check(const LambOptions& options, const Checks& checks) {
    checks.at_least_zero("lr", options.lr);
    checks.at_least_zero("eps", options.eps);
    checks.at_least_zero("weight_decay", options.weight_decay);
    const auto most = options.max_lr_snapshot;
    checks.require(!options.corrected_weight_decay || !most || *most > 0, "lr", options.lr,
                   "above 0 with corrected_weight_decay");
  }
  static void complete(LambOptions& defaults) {
    if (!defaults.max_lr_snapshot) defaults.max_lr_snapshot = defaults.lr;
  }
  static void begin(NamedTensors& state, const at::Tensor& parameter, const at::Tensor&, const LambOptions&) {
    state["exp_avg"] = at::zeros_like(parameter);
    state["exp_avg_sq"] = at::zeros_like(parameter);
  }
  // Clips the norm of all gradients together.
  template <typename Members>
  static void begin_step(const LambOptions& defaults, std::vector<Members>& groups) {
    std::vector<at::Tensor> norms;
    for (const auto& members : groups)
      for (const auto& member : members) norms.push_back(l2_norm(member.gradient));
    if (!defaults.max_grad_norm || norms.empty()) return;
    const auto factor = l2_norm(at::stack(norms)).div(*defaults.max_grad_norm).clamp_min_(1.0);
    for (auto& members : groups)
      for (auto& member : members) member.gradient = member.gradient / factor;
  }
  static void begin_group(LambOptions& options) { ++options.step; }
  static void update(const LambOptions& options, const Group<LambOptions>&, const at::Tensor& parameter,
                     const at::Tensor& gradient, NamedParamState& state) {
    const auto [beta1, beta2] = options.betas;
    const auto step = static_cast<double>(options.step);
    const auto correction1 = options.bias_correction ? 1 - std::pow(beta1, step) : 1.0;
    const auto correction2 = options.bias_correction ? 1 - std::pow(beta2, step) : 1.0;
    auto& exp_avg = state.tensors.at("exp_avg");
    auto& exp_avg_sq = state.tensors.at("exp_avg_sq");
    if (options.grad_averaging) {
      exp_avg.lerp_(gradient, 1 - beta1);
    } else {
      exp_avg.mul_(beta1).add_(gradient, 1.0);
    }
    exp_avg_sq.mul_(beta2).addcmul_(gradient, gradient, 1 - beta2);
    const auto denominator = exp_avg_sq.sqrt().div(std::pow(correction2, 0.5)).add_(options.eps);
    const auto update = exp_avg.div(correction1).div_(denominator);
    if (options.caution) {
      const auto mask = (update * gradient).gt(0).to(gradient.scalar_type());
      update.mul_(mask.div_(mask.mean().clamp_min_(1e-3)));
    }
    decay(options, parameter, update);
    if (options.weight_decay != 0 || options.always_adapt) {
      const auto weight_norm = l2_norm(parameter);
      const auto update_norm = l2_norm(update);
      auto ratio = or_one(weight_norm / update_norm, weight_norm, update_norm);
      if (options.trust_clip) ratio = ratio.clamp_max(1.0);
      update.mul_(ratio);
    }
    parameter.add_(update, -options.lr);
  }

 private:
  static void decay(const LambOptions& options, const at::Tensor& parameter, const at::Tensor& update) {
    if (options.weight_decay == 0) return;
    if (!options.decoupled_decay) {
      update.add_(parameter, options.weight_decay);
      return;
    }
    const auto lr = options.lr;
    const auto scale = options.corrected_weight_decay ? lr * lr / options.max_lr_snapshot.value_or(lr) : lr;
    parameter.add_(parameter, -scale * options.weight_decay);
  }
};

template <>
struct Rules<LarsOptions> {
  static constexpr const char* name = "Lars";
  static constexpr bool needs_whole_parameters = true;

  static void visit_fields(LarsOptions& options, Fields& fields) {
    fields("lr", options.lr);
    fields("momentum", options.momentum);
    fields("dampening", options.dampening);
    fields("weight_decay", options.weight_decay);
    fields("nesterov", options.nesterov);
    fields("trust_coeff", options.trust_coeff);
    fields("eps", options.eps);
    fields("trust_clip", options.trust_clip);
    fields("always_adapt", options.always_adapt);
    fields.constant("foreach", None());
  }
  static void check(const LarsOptions& options, const Checks& checks) {
    checks.at_least_zero("lr", options.lr);
    checks.at_least_zero("momentum", options.momentum);
    checks.at_least_zero("weight_decay", options.weight_decay);
    const bool fits = options.momentum > 0 && options.dampening == 0;
    checks.require(!options.nesterov || fits, "nesterov", options.nesterov,
                   "with a momentum and without dampening");
  }
  static void update(const LarsOptions& options, const Group<LarsOptions>&, const at::Tensor& parameter,
                     const at::Tensor& given, NamedParamState& state) {
    auto gradient = given;
    if (options.weight_decay != 0 || options.always_adapt)
      gradient = gradient.add(parameter, options.weight_decay).mul_(trust_ratio(options, parameter, given));
    if (options.momentum != 0) {
      auto& buffer = state.tensors["momentum_buffer"];
      if (buffer.defined()) {
        buffer.mul_(options.momentum).add_(gradient, 1.0 - options.dampening);
      } else {
        buffer = gradient.clone();
      }
      gradient = options.nesterov ? gradient.add(buffer, options.momentum) : buffer;
    }
    parameter.add_(gradient, -options.lr);
  }

 private:
  static at::Tensor trust_ratio(const LarsOptions& options, const at::Tensor& parameter,
                                const at::Tensor& gradient) {
    const auto weight_norm = l2_norm(parameter);
    const auto gradient_norm = l2_norm(gradient);
    auto ratio = weight_norm * options.trust_coeff /
                 (gradient_norm + weight_norm * options.weight_decay + options.eps);
    ratio = or_one(ratio, weight_norm, gradient_norm);
    return options.trust_clip ? ratio.div(options.lr).clamp_max(1.0) : ratio;
  }
};

template <>
struct Rules<LionOptions> {
  static constexpr const char* name = "Lion";

  static void visit_fields(LionOptions& options, Fields& fields) {
    fields("lr", options.lr);
    fields("betas", options.betas);
    fields("weight_decay", options.weight_decay);
    fields.optional("decoupled_weight_decay", options.decoupled_weight_decay);
  }
  static void check(const LionOptions& options, const Checks& checks) {
    const auto [beta1, beta2] = options.betas;
    checks.require(options.lr >= 0, "lr", options.lr, "0 or more");
    checks.require(beta1 >= 0 && beta1 <= 1, "the first of betas", beta1, "0 to 1");
    checks.require(beta2 >= 0 && beta2 <= 1, "the second of betas", beta2, "0 to 1");
    checks.require(!options.decoupled_weight_decay || options.lr > 0, "lr", options.lr,
                   "above 0 with decoupled_weight_decay");
  }
  static void begin(NamedTensors& state, const at::Tensor& parameter, const at::Tensor&, const LionOptions&) {
    state["exp_avg"] = at::zeros_like(parameter);
  }
  static void update(const LionOptions& options, const Group<LionOptions>& group, const at::Tensor& parameter,
                     const at::Tensor& gradient, NamedParamState& state) {
    const auto [beta1, beta2] = options.betas;
    auto decay = options.weight_decay;
    if (group.defaults.decoupled_weight_decay) decay /= group.defaults.lr;
    auto& exp_avg = state.tensors.at("exp_avg");
    parameter.mul_(1.0 - options.lr * decay);
    parameter.add_(exp_avg.clone().mul_(beta1).add(gradient, 1.0 - beta1).sgn_(), -options.lr);
    exp_avg.mul_(beta2).add_(gradient, 1.0 - beta2);
  }
};

template class GroupOptionsOf<MuonOptions>;
template class GroupOptionsOf<LambOptions>;
template class GroupOptionsOf<LarsOptions>;
template class GroupOptionsOf<LionOptions>;
template class OptimizerOf<MuonOptions>;
template class OptimizerOf<LambOptions>;
template class OptimizerOf<LarsOptions>;
template class OptimizerOf<LionOptions>;

}  // namespace lockstep::optim
