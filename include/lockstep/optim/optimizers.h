// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>
#include <torch/optim/optimizer.h>

#include <lockstep/base/literal.h>
#include <lockstep/serialize/value.h>

namespace lockstep::optim {

class Fields;
struct NamedKind;

/// The state of a parameter by Python's names, such as "exp_avg". PyTorch: `optimizer.state[parameter]`.
struct NamedParamState : torch::optim::OptimizerCloneableParamState<NamedParamState> {
  std::map<std::string, at::Tensor> tensors;  ///< by name: "step", "exp_avg" and so on
  /// Dtype, device and shape of the parameter in the last step. Not saved.
  struct Kind {
    at::ScalarType dtype;             ///< of the parameter
    at::Device device;                ///< of the parameter
    std::vector<std::int64_t> sizes;  ///< shape of the parameter
    bool operator==(const Kind& other) const = default;
  };
  std::optional<Kind> parameter = std::nullopt;  ///< Set by the first step.
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

/// The base of the options below. They have Python's names and defaults and are set as in LibTorch:
/// `NAdamOptions(1e-3).weight_decay(0.01)`. Options that never change results on the CPU are not there:
/// foreach, capturable and differentiable. The state dict has them with Python's defaults.
class NamedOptions : public torch::optim::OptimizerOptions {
 public:
  /// The options by name, as in a group of the optimizer's state dict.
  Dict to_dict() const;
  /// Sets the options that the dict has. With `complete`, all must be there. Throws CheckpointError that
  /// begins with `owner`.
  void from_dict(const Dict& dict, const std::string& owner, bool complete);
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  bool operator==(const NamedOptions& other) const;

 private:
  friend struct NamedKind;
  virtual void visit_fields(Fields& fields) = 0;
};

/// Learning rate and copies of options.
template <typename Derived>
class NamedOptionsOf : public NamedOptions {
 public:
  double get_lr() const override { return static_cast<const Derived&>(*this).lr(); }
  void set_lr(double lr) override { static_cast<Derived&>(*this).lr(lr); }
  std::unique_ptr<torch::optim::OptimizerOptions> clone() const override {
    return std::make_unique<Derived>(static_cast<const Derived&>(*this));
  }
};

/// The base of the optimizers below. Parameters are real and dense and, except in SparseAdam, so are
/// gradients.
class NamedOptimizer : public torch::optim::Optimizer {
 public:
  /// Adds a group. As in LibTorch, an option with the value of default-constructed options gets that of the
  /// optimizer's defaults. Call this function, not that of torch::optim::Optimizer&, which ignores options.
  /// Throws ArgumentError for invalid values, options of another optimizer, a parameter that does not fit and
  /// one that another group has. Values that are set later, such as rates of schedulers, are not checked.
  void add_param_group(const torch::optim::OptimizerParamGroup& param_group);

  /// Throws ArgumentError for a gradient that does not fit, before a parameter changes.
  at::Tensor step(LossClosure closure = nullptr) override;

  /// Of lockstep::state_dict() and lockstep::load_state_dict(), for these optimizers.
  Dict state_dict() const;
  /// Loads groups and states of a state dict, of Python's too. Throws CheckpointError; nothing has changed
  /// then.
  void load_state_dict(const Dict& state_dict);

 protected:
  struct Member;  // a parameter with a gradient, in a step

  explicit NamedOptimizer(std::unique_ptr<torch::optim::OptimizerOptions> defaults)
      : Optimizer(std::vector<torch::optim::OptimizerParamGroup>{}, std::move(defaults)) {}
  void begin(const std::vector<torch::optim::OptimizerParamGroup>& param_groups);

  virtual const char* name() const = 0;
  virtual bool takes_sparse() const = 0;
  virtual std::unique_ptr<NamedOptions> fresh_options() const = 0;
  virtual void check_options(const torch::optim::OptimizerOptions& options) const = 0;
  virtual void check_parameter(const at::Tensor& parameter) const = 0;
  /// Fills the state of a parameter that has none.
  virtual void begin_state(const Member& member, const torch::optim::OptimizerOptions& options) const = 0;
  virtual void step_groups(std::vector<std::vector<Member>>& groups) = 0;

 private:
  friend struct NamedKind;
  void check_kind(const torch::optim::OptimizerOptions& options) const;
  void check_kept(const Member& member, std::size_t index, std::size_t group) const;
  std::vector<at::Tensor> checked_parameters(const std::vector<at::Tensor>& given) const;
  std::vector<Member> members_of(std::size_t group);
  std::unique_ptr<NamedParamState> new_state(const at::Tensor& parameter,
                                             const torch::optim::OptimizerOptions& options) const;
};

/// An optimizer with Python's algorithm and the options `Options`; the aliases at the end of this header name
/// them.
template <typename Options>
class OptimizerOf : public NamedOptimizer {
 public:
  explicit OptimizerOf(const std::vector<torch::optim::OptimizerParamGroup>& param_groups,
                       const Options& defaults = {});
  explicit OptimizerOf(std::vector<at::Tensor> params, const Options& defaults = {})
      : OptimizerOf(std::vector{torch::optim::OptimizerParamGroup(std::move(params))}, defaults) {}

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 protected:
  const char* name() const override;
  bool takes_sparse() const override;
  std::unique_ptr<NamedOptions> fresh_options() const override;
  void check_options(const torch::optim::OptimizerOptions& options) const override;
  void check_parameter(const at::Tensor& parameter) const override;
  void begin_state(const Member& member, const torch::optim::OptimizerOptions& options) const override;
  void step_groups(std::vector<std::vector<Member>>& groups) override;
};

/// Two decay rates, of the gradients and of their squares.
using Betas = std::tuple<double, double>;

/// Options of NAdam, with PyTorch's names and defaults.
struct NAdamOptions : NamedOptionsOf<NAdamOptions> {
  NAdamOptions(double lr = 2e-3) : lr_(lr) {}  // NOLINT: implicit as in LibTorch, here and below
  /// Learning rate.
  TORCH_ARG(double, lr);
  /// Decay rates of the averages of gradients and of their squares.
  TORCH_ARG(Betas, betas) = {0.9, 0.999};
  /// Added to the denominator.
  TORCH_ARG(double, eps) = 1e-8;
  /// Factor of the L2 penalty, or of the decoupled decay.
  TORCH_ARG(double, weight_decay) = 0;
  /// How fast the momentum grows to its full value.
  TORCH_ARG(double, momentum_decay) = 4e-3;
  /// Shrinks parameters apart from the gradient, as AdamW does, instead of an L2 penalty.
  TORCH_ARG(bool, decoupled_weight_decay) = false;
  /// Maximize the objective instead of minimizing it.
  TORCH_ARG(bool, maximize) = false;
  void visit_fields(Fields& fields) override;
};

/// Options of RAdam, with PyTorch's names and defaults.
struct RAdamOptions : NamedOptionsOf<RAdamOptions> {
  RAdamOptions(double lr = 1e-3) : lr_(lr) {}  // NOLINT
  /// Learning rate.
  TORCH_ARG(double, lr);
  /// Decay rates of the averages of gradients and of their squares.
  TORCH_ARG(Betas, betas) = {0.9, 0.999};
  /// Added to the denominator.
  TORCH_ARG(double, eps) = 1e-8;
  /// Factor of the L2 penalty, or of the decoupled decay.
  TORCH_ARG(double, weight_decay) = 0;
  /// Shrinks parameters apart from the gradient, as AdamW does, instead of an L2 penalty.
  TORCH_ARG(bool, decoupled_weight_decay) = false;
  /// Maximize the objective instead of minimizing it.
  TORCH_ARG(bool, maximize) = false;
  void visit_fields(Fields& fields) override;
};

/// Options of Adamax, with PyTorch's names and defaults.
struct AdamaxOptions : NamedOptionsOf<AdamaxOptions> {
  AdamaxOptions(double lr = 2e-3) : lr_(lr) {}  // NOLINT
  /// Learning rate.
  TORCH_ARG(double, lr);
  /// Decay rates of the averages of gradients and of their squares.
  TORCH_ARG(Betas, betas) = {0.9, 0.999};
  /// Added to the denominator.
  TORCH_ARG(double, eps) = 1e-8;
  /// Factor of the L2 penalty.
  TORCH_ARG(double, weight_decay) = 0;
  /// Maximize the objective instead of minimizing it.
  TORCH_ARG(bool, maximize) = false;
  void visit_fields(Fields& fields) override;
};

/// Options of Adadelta, with PyTorch's names and defaults.
struct AdadeltaOptions : NamedOptionsOf<AdadeltaOptions> {
  AdadeltaOptions(double lr = 1.0) : lr_(lr) {}  // NOLINT
  /// Learning rate.
  TORCH_ARG(double, lr);
  /// Decay rate of the averages of squares.
  TORCH_ARG(double, rho) = 0.9;
  /// Added to the denominator.
  TORCH_ARG(double, eps) = 1e-6;
  /// Factor of the L2 penalty.
  TORCH_ARG(double, weight_decay) = 0;
  /// Maximize the objective instead of minimizing it.
  TORCH_ARG(bool, maximize) = false;
  void visit_fields(Fields& fields) override;
};

/// Options of ASGD, with PyTorch's names and defaults.
struct ASGDOptions : NamedOptionsOf<ASGDOptions> {
  ASGDOptions(double lr = 1e-2) : lr_(lr) {}  // NOLINT
  /// Learning rate.
  TORCH_ARG(double, lr);
  /// Factor of the decay of parameters and of the rate.
  TORCH_ARG(double, lambd) = 1e-4;
  /// Power with which the rate falls.
  TORCH_ARG(double, alpha) = 0.75;
  /// Step at which the averaging begins.
  TORCH_ARG(double, t0) = 1e6;
  /// Factor of the L2 penalty.
  TORCH_ARG(double, weight_decay) = 0;
  /// Maximize the objective instead of minimizing it.
  TORCH_ARG(bool, maximize) = false;
  void visit_fields(Fields& fields) override;
};

/// Options of Rprop, with PyTorch's names and defaults.
struct RpropOptions : NamedOptionsOf<RpropOptions> {
  RpropOptions(double lr = 1e-2) : lr_(lr) {}  // NOLINT
  /// Two numbers.
  using Pair = std::tuple<double, double>;
  /// Learning rate.
  TORCH_ARG(double, lr);
  /// PyTorch's etaminus and etaplus: the factors of a step size after the gradient changed its sign and otherwise.
  TORCH_ARG(Pair, etas) = {0.5, 1.2};
  /// The least and the largest step size.
  TORCH_ARG(Pair, step_sizes) = {1e-6, 50.0};
  /// Maximize the objective instead of minimizing it.
  TORCH_ARG(bool, maximize) = false;
  void visit_fields(Fields& fields) override;
};

/// Options of SparseAdam, with PyTorch's names and defaults.
struct SparseAdamOptions : NamedOptionsOf<SparseAdamOptions> {
  SparseAdamOptions(double lr = 1e-3) : lr_(lr) {}  // NOLINT
  /// Learning rate.
  TORCH_ARG(double, lr);
  /// Decay rates of the averages of gradients and of their squares.
  TORCH_ARG(Betas, betas) = {0.9, 0.999};
  /// Added to the denominator.
  TORCH_ARG(double, eps) = 1e-8;
  /// Maximize the objective instead of minimizing it.
  TORCH_ARG(bool, maximize) = false;
  void visit_fields(Fields& fields) override;
};

/// Options of Adafactor, with PyTorch's names and defaults.
struct AdafactorOptions : NamedOptionsOf<AdafactorOptions> {
  AdafactorOptions(double lr = 1e-2) : lr_(lr) {}  // NOLINT
  /// An epsilon of the squared gradients, and one of the parameter's size.
  using Eps = std::tuple<std::optional<double>, double>;
  /// Learning rate.
  TORCH_ARG(double, lr);
  /// Power with which the decay rate of the averages of squares nears 1.
  TORCH_ARG(double, beta2_decay) = -0.8;
  /// Of squared gradients, by default the epsilon of the dtype, and of the size of the parameter.
  TORCH_ARG(Eps, eps) = {std::nullopt, 1e-3};
  /// Greatest root mean square of an update, above which it is scaled down.
  TORCH_ARG(double, d) = 1.0;
  /// Factor of the decoupled decay.
  TORCH_ARG(double, weight_decay) = 0;
  /// Maximize the objective instead of minimizing it.
  TORCH_ARG(bool, maximize) = false;
  void visit_fields(Fields& fields) override;
};

/// How Muon scales the rate by a matrix's shape: by sqrt(max(1, rows / columns)), or so that updates are as large
/// as AdamW's.
enum class MuonAdjustment : std::uint8_t {
  original,         ///< by sqrt(max(1, rows / columns))
  match_rms_adamw,  ///< so that updates are as large as AdamW's
};
OneOf<"original", "match_rms_adamw"> literals_of(MuonAdjustment);

/// Options of Muon, with PyTorch's names and defaults.
struct MuonOptions : NamedOptionsOf<MuonOptions> {
  MuonOptions(double lr = 1e-3) : lr_(lr) {}  // NOLINT
  /// The three coefficients of a Newton-Schulz iteration.
  using Coefficients = std::tuple<double, double, double>;
  /// Learning rate.
  TORCH_ARG(double, lr);
  /// Factor of the decoupled decay.
  TORCH_ARG(double, weight_decay) = 0.1;
  /// Factor of the earlier steps' gradients.
  TORCH_ARG(double, momentum) = 0.95;
  /// Nesterov momentum.
  TORCH_ARG(bool, nesterov) = true;
  /// Coefficients of the Newton-Schulz iteration.
  TORCH_ARG(Coefficients, ns_coefficients) = {3.4445, -4.775, 2.0315};
  /// The least norm by which a matrix is divided.
  TORCH_ARG(double, eps) = 1e-7;
  /// Newton-Schulz iterations in a step.
  TORCH_ARG(std::int64_t, ns_steps) = 5;

 public:
  /// Default, as in PyTorch: nullopt, which is "original".
  MuonOptions& adjust_lr_fn(Literal<MuonAdjustment> name) {
    adjust_lr_fn_ = std::string(name.text());
    return *this;
  }
  const std::optional<std::string>& adjust_lr_fn() const { return adjust_lr_fn_; }
  void visit_fields(Fields& fields) override;

 private:
  std::optional<std::string> adjust_lr_fn_;
};

/// Options of Lamb, with timm's names and defaults.
struct LambOptions : NamedOptionsOf<LambOptions> {
  LambOptions(double lr = 1e-3) : lr_(lr) {}  // NOLINT
  /// Learning rate.
  TORCH_ARG(double, lr);
  /// Divide the averages by what they lack in the first steps.
  TORCH_ARG(bool, bias_correction) = true;
  /// Decay rates of the averages of gradients and of their squares.
  TORCH_ARG(Betas, betas) = {0.9, 0.999};
  /// Added to the denominator.
  TORCH_ARG(double, eps) = 1e-6;
  /// Factor of the decay, before the trust ratio or decoupled.
  TORCH_ARG(double, weight_decay) = 0.01;
  /// Weight a new gradient with 1 - beta1 instead of 1.
  TORCH_ARG(bool, grad_averaging) = true;
  /// Greatest norm of the gradients of all groups, to which they are scaled; the value of the defaults
  /// counts.
  TORCH_ARG(std::optional<double>, max_grad_norm) = 1.0;
  /// Limit the trust ratio to 1.
  TORCH_ARG(bool, trust_clip) = false;
  /// Use the trust ratio without weight decay too.
  TORCH_ARG(bool, always_adapt) = false;
  /// Leave out updates whose sign differs from the gradient's.
  TORCH_ARG(bool, caution) = false;
  /// Shrink parameters apart from the update.
  TORCH_ARG(bool, decoupled_decay) = false;
  /// Decoupled decay by lr^2 / max_lr_snapshot instead of lr.
  TORCH_ARG(bool, corrected_weight_decay) = false;
  /// Highest rate of the run; default: the rate of the defaults.
  TORCH_ARG(std::optional<double>, max_lr_snapshot) = std::nullopt;
  /// Steps made, counted per group.
  TORCH_ARG(std::int64_t, step) = 0;
  void visit_fields(Fields& fields) override;
};

/// Options of Lars, with timm's names and defaults.
struct LarsOptions : NamedOptionsOf<LarsOptions> {
  LarsOptions(double lr = 1.0) : lr_(lr) {}  // NOLINT
  /// Learning rate.
  TORCH_ARG(double, lr);
  /// Factor of the earlier steps' gradients.
  TORCH_ARG(double, momentum) = 0;
  /// The share of the gradient that does not enter the momentum.
  TORCH_ARG(double, dampening) = 0;
  /// Factor of the L2 penalty.
  TORCH_ARG(double, weight_decay) = 0;
  /// Nesterov momentum.
  TORCH_ARG(bool, nesterov) = false;
  /// Factor of the trust ratio.
  TORCH_ARG(double, trust_coeff) = 1e-3;
  /// Added to the denominator.
  TORCH_ARG(double, eps) = 1e-8;
  /// Limit the trust ratio to the rate, the step to that of SGD.
  TORCH_ARG(bool, trust_clip) = false;
  /// Use the trust ratio without weight decay too.
  TORCH_ARG(bool, always_adapt) = false;
  void visit_fields(Fields& fields) override;
};

/// Options of Lion, with lion_pytorch's names and defaults.
struct LionOptions : NamedOptionsOf<LionOptions> {
  LionOptions(double lr = 1e-4) : lr_(lr) {}  // NOLINT
  /// Learning rate.
  TORCH_ARG(double, lr);
  /// Weight of the average in the update, and decay rate of the average.
  TORCH_ARG(Betas, betas) = {0.9, 0.99};
  /// Factor of the decoupled decay.
  TORCH_ARG(double, weight_decay) = 0;
  /// Divides weight_decay by the first rate. The value of the defaults counts, not that of a group.
  TORCH_ARG(bool, decoupled_weight_decay) = false;
  void visit_fields(Fields& fields) override;
};

extern template class OptimizerOf<AdadeltaOptions>;
extern template class OptimizerOf<AdafactorOptions>;
extern template class OptimizerOf<AdamaxOptions>;
extern template class OptimizerOf<ASGDOptions>;
extern template class OptimizerOf<LambOptions>;
extern template class OptimizerOf<LarsOptions>;
extern template class OptimizerOf<LionOptions>;
extern template class OptimizerOf<MuonOptions>;
extern template class OptimizerOf<NAdamOptions>;
extern template class OptimizerOf<RAdamOptions>;
extern template class OptimizerOf<RpropOptions>;
extern template class OptimizerOf<SparseAdamOptions>;

/// `torch.optim.NAdam`, bitwise equal to Python's with its defaults on the CPU.
using NAdam = OptimizerOf<NAdamOptions>;
/// `torch.optim.RAdam`, bitwise equal to Python's with its defaults on the CPU.
using RAdam = OptimizerOf<RAdamOptions>;
/// `torch.optim.Adamax`, bitwise equal to Python's with its defaults on the CPU.
using Adamax = OptimizerOf<AdamaxOptions>;
/// `torch.optim.Adadelta`, bitwise equal to Python's with its defaults on the CPU.
using Adadelta = OptimizerOf<AdadeltaOptions>;
/// `torch.optim.ASGD`, bitwise equal to Python's with its defaults on the CPU.
using ASGD = OptimizerOf<ASGDOptions>;
/// `torch.optim.Rprop`, bitwise equal to Python's with its defaults on the CPU.
using Rprop = OptimizerOf<RpropOptions>;
using SparseAdam = OptimizerOf<SparseAdamOptions>;  ///< takes sparse gradients, as of Embedding(sparse=True)
/// `torch.optim.Adafactor`, bitwise equal to Python's with its defaults on the CPU.
using Adafactor = OptimizerOf<AdafactorOptions>;
using Muon = OptimizerOf<MuonOptions>;  ///< takes matrices; the other parameters need another optimizer

/// `timm.optim.Lamb`, for large batches.
using Lamb = OptimizerOf<LambOptions>;
/// `timm.optim.Lars`, for large batches.
using Lars = OptimizerOf<LarsOptions>;
/// `lion_pytorch.Lion`.
using Lion = OptimizerOf<LionOptions>;

}  // namespace lockstep::optim
