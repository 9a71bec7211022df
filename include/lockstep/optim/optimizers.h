// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
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

/// The base of GroupOptionsOf.
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

/// The options of a group of parameters, as LibTorch keeps them, with the fields of `Options`:
///
///     auto& options = static_cast<optim::NAdam::GroupOptions&>(optimizer.param_groups()[0].options());
///     options.weight_decay = 0;
template <typename Options>
class GroupOptionsOf : public NamedOptions, public Options {
 public:
  GroupOptionsOf(const Options& options = {}) : Options(options) {}  // NOLINT: implicit by design
  explicit GroupOptionsOf(double rate) { this->lr = rate; }
  double get_lr() const override { return this->lr; }
  void set_lr(double rate) override { this->lr = rate; }
  std::unique_ptr<torch::optim::OptimizerOptions> clone() const override {
    return std::make_unique<GroupOptionsOf>(*this);
  }

 private:
  void visit_fields(Fields& fields) override;
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
/// them. Options have Python's names and defaults:
///
///     optim::NAdam optimizer(net->parameters(), {.lr = 1e-3, .weight_decay = 0.01});
///
/// Options that never change results on the CPU are not there: foreach, capturable and differentiable. The state
/// dict has them with Python's defaults.
template <typename Options>
class OptimizerOf : public NamedOptimizer {
 public:
  /// The arguments by name.
  using Arguments = Options;
  /// The options of a group.
  using GroupOptions = GroupOptionsOf<Options>;

  explicit OptimizerOf(const std::vector<torch::optim::OptimizerParamGroup>& param_groups,
                       const Options& defaults = {});
  explicit OptimizerOf(std::vector<at::Tensor> params, const Options& defaults = {})
      : OptimizerOf(std::vector{torch::optim::OptimizerParamGroup(std::move(params))}, defaults) {}
  /// With the learning rate alone, as in Python.
  template <typename Number>
    requires(std::is_arithmetic_v<Number> && !std::is_same_v<Number, bool>)
  OptimizerOf(std::vector<at::Tensor> params, Number lr) : OptimizerOf(std::move(params), with_rate(lr)) {}

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

 private:
  static Options with_rate(auto lr) {
    Options options;
    options.lr = static_cast<double>(lr);
    return options;
  }
};

/// Two decay rates, of the gradients and of their squares.
using Betas = std::tuple<double, double>;

/// Options of NAdam, with PyTorch's names and defaults.
struct NAdamOptions {
  double lr = 2e-3;              ///< learning rate
  Betas betas = {0.9, 0.999};    ///< decay rates of the averages of gradients and of their squares
  double eps = 1e-8;             ///< added to the denominator
  double weight_decay = 0;       ///< factor of the L2 penalty, or of the decoupled decay
  double momentum_decay = 4e-3;  ///< how fast the momentum grows to its full value
  /// Shrinks parameters apart from the gradient, as AdamW does, instead of an L2 penalty.
  bool decoupled_weight_decay = false;
  bool maximize = false;  ///< maximize the objective instead of minimizing it
};

/// Options of RAdam, with PyTorch's names and defaults.
struct RAdamOptions {
  double lr = 1e-3;            ///< learning rate
  Betas betas = {0.9, 0.999};  ///< decay rates of the averages of gradients and of their squares
  double eps = 1e-8;           ///< added to the denominator
  double weight_decay = 0;     ///< factor of the L2 penalty, or of the decoupled decay
  /// Shrinks parameters apart from the gradient, as AdamW does, instead of an L2 penalty.
  bool decoupled_weight_decay = false;
  bool maximize = false;  ///< maximize the objective instead of minimizing it
};

/// Options of Adamax, with PyTorch's names and defaults.
struct AdamaxOptions {
  double lr = 2e-3;            ///< learning rate
  Betas betas = {0.9, 0.999};  ///< decay rates of the averages of gradients and of their squares
  double eps = 1e-8;           ///< added to the denominator
  double weight_decay = 0;     ///< factor of the L2 penalty
  bool maximize = false;       ///< maximize the objective instead of minimizing it
};

/// Options of Adadelta, with PyTorch's names and defaults.
struct AdadeltaOptions {
  double lr = 1.0;          ///< learning rate
  double rho = 0.9;         ///< decay rate of the averages of squares
  double eps = 1e-6;        ///< added to the denominator
  double weight_decay = 0;  ///< factor of the L2 penalty
  bool maximize = false;    ///< maximize the objective instead of minimizing it
};

/// Options of ASGD, with PyTorch's names and defaults.
struct ASGDOptions {
  double lr = 1e-2;         ///< learning rate
  double lambd = 1e-4;      ///< factor of the decay of parameters and of the rate
  double alpha = 0.75;      ///< power with which the rate falls
  double t0 = 1e6;          ///< step at which the averaging begins
  double weight_decay = 0;  ///< factor of the L2 penalty
  bool maximize = false;    ///< maximize the objective instead of minimizing it
};

/// Options of Rprop, with PyTorch's names and defaults.
struct RpropOptions {
  using Pair = std::tuple<double, double>;  ///< two numbers
  double lr = 1e-2;                         ///< learning rate
  /// PyTorch's etaminus and etaplus: the factors of a step size after the gradient changed its sign and otherwise.
  Pair etas = {0.5, 1.2};
  Pair step_sizes = {1e-6, 50.0};  ///< the least and the largest step size
  bool maximize = false;           ///< maximize the objective instead of minimizing it
};

/// Options of SparseAdam, with PyTorch's names and defaults.
struct SparseAdamOptions {
  double lr = 1e-3;            ///< learning rate
  Betas betas = {0.9, 0.999};  ///< decay rates of the averages of gradients and of their squares
  double eps = 1e-8;           ///< added to the denominator
  bool maximize = false;       ///< maximize the objective instead of minimizing it
};

/// Options of Adafactor, with PyTorch's names and defaults.
struct AdafactorOptions {
  /// An epsilon of the squared gradients, and one of the parameter's size.
  using Eps = std::tuple<std::optional<double>, double>;
  double lr = 1e-2;           ///< learning rate
  double beta2_decay = -0.8;  ///< power with which the decay rate of the averages of squares nears 1
  /// Of squared gradients, by default the epsilon of the dtype, and of the size of the parameter.
  Eps eps = {std::nullopt, 1e-3};
  double d = 1.0;           ///< greatest root mean square of an update, above which it is scaled down
  double weight_decay = 0;  ///< factor of the decoupled decay
  bool maximize = false;    ///< maximize the objective instead of minimizing it
};

/// How Muon scales the rate by a matrix's shape: by sqrt(max(1, rows / columns)), or so that updates are as large
/// as AdamW's.
enum class MuonAdjustment : std::uint8_t {
  original,         ///< by sqrt(max(1, rows / columns))
  match_rms_adamw,  ///< so that updates are as large as AdamW's
};
OneOf<"original", "match_rms_adamw"> literals_of(MuonAdjustment);

/// Options of Muon, with PyTorch's names and defaults.
struct MuonOptions {
  /// The three coefficients of a Newton-Schulz iteration.
  using Coefficients = std::tuple<double, double, double>;
  double lr = 1e-3;                                         ///< learning rate
  double weight_decay = 0.1;                                ///< factor of the decoupled decay
  double momentum = 0.95;                                   ///< factor of the earlier steps' gradients
  bool nesterov = true;                                     ///< Nesterov momentum
  Coefficients ns_coefficients = {3.4445, -4.775, 2.0315};  ///< coefficients of the Newton-Schulz iteration
  double eps = 1e-7;                                        ///< the least norm by which a matrix is divided
  std::int64_t ns_steps = 5;                                ///< Newton-Schulz iterations in a step
  /// Default, as in PyTorch: nullopt, which is "original".
  OptionalLiteral<MuonAdjustment> adjust_lr_fn = std::nullopt;
};

/// Options of Lamb, with timm's names and defaults.
struct LambOptions {
  double lr = 1e-3;             ///< learning rate
  bool bias_correction = true;  ///< divide the averages by what they lack in the first steps
  Betas betas = {0.9, 0.999};   ///< decay rates of the averages of gradients and of their squares
  double eps = 1e-6;            ///< added to the denominator
  double weight_decay = 0.01;   ///< factor of the decay, before the trust ratio or decoupled
  bool grad_averaging = true;   ///< weight a new gradient with 1 - beta1 instead of 1
  /// Greatest norm of the gradients of all groups, to which they are scaled; the value of the defaults
  /// counts.
  std::optional<double> max_grad_norm = 1.0;
  bool trust_clip = false;              ///< limit the trust ratio to 1
  bool always_adapt = false;            ///< use the trust ratio without weight decay too
  bool caution = false;                 ///< leave out updates whose sign differs from the gradient's
  bool decoupled_decay = false;         ///< shrink parameters apart from the update
  bool corrected_weight_decay = false;  ///< decoupled decay by lr^2 / max_lr_snapshot instead of lr
  /// Highest rate of the run; default: the rate of the defaults.
  std::optional<double> max_lr_snapshot = std::nullopt;
  std::int64_t step = 0;  ///< steps made, counted per group
};

/// Options of Lars, with timm's names and defaults.
struct LarsOptions {
  double lr = 1.0;            ///< learning rate
  double momentum = 0;        ///< factor of the earlier steps' gradients
  double dampening = 0;       ///< the share of the gradient that does not enter the momentum
  double weight_decay = 0;    ///< factor of the L2 penalty
  bool nesterov = false;      ///< Nesterov momentum
  double trust_coeff = 1e-3;  ///< factor of the trust ratio
  double eps = 1e-8;          ///< added to the denominator
  bool trust_clip = false;    ///< limit the trust ratio to the rate, the step to that of SGD
  bool always_adapt = false;  ///< use the trust ratio without weight decay too
};

/// Options of Lion, with lion_pytorch's names and defaults.
struct LionOptions {
  double lr = 1e-4;           ///< learning rate
  Betas betas = {0.9, 0.99};  ///< weight of the average in the update, and decay rate of the average
  double weight_decay = 0;    ///< factor of the decoupled decay
  /// Divides weight_decay by the first rate. The value of the defaults counts, not that of a group.
  bool decoupled_weight_decay = false;
};

extern template class GroupOptionsOf<AdadeltaOptions>;
extern template class GroupOptionsOf<AdafactorOptions>;
extern template class GroupOptionsOf<AdamaxOptions>;
extern template class GroupOptionsOf<ASGDOptions>;
extern template class GroupOptionsOf<LambOptions>;
extern template class GroupOptionsOf<LarsOptions>;
extern template class GroupOptionsOf<LionOptions>;
extern template class GroupOptionsOf<MuonOptions>;
extern template class GroupOptionsOf<NAdamOptions>;
extern template class GroupOptionsOf<RAdamOptions>;
extern template class GroupOptionsOf<RpropOptions>;
extern template class GroupOptionsOf<SparseAdamOptions>;
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
