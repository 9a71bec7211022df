// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>

#include <lockstep/optim/fused_arguments.h>

namespace lockstep::optim {

/// Options that fused optimizers have in addition to those of LibTorch's optimizer of the same name.
class FusedOptions {
 public:
  virtual ~FusedOptions() = default;

  /// Whether the objective is maximized. PyTorch: `maximize`.
  bool maximize() const noexcept { return maximize_; }
  bool& maximize() noexcept { return maximize_; }
  /// The learning rate as a tensor; undefined if the rate is a number. PyTorch: `lr` as a Tensor.
  const at::Tensor& lr_tensor() const noexcept { return lr_tensor_; }

  /// Fills the tensor, if there is one, with `lr`. Does not synchronize with the device.
  void fill_lr_tensor(double lr);
  /// Whether lr() was set through LibTorch's options since the tensor was filled last. The optimizers check
  /// it before each step. After writing the tensor directly, use set_lr(); lr() ignores a repeated value.
  bool is_lr_tensor_stale() const noexcept { return lr_tensor_.defined() && filled_lr_ != lr_number(); }
  /// lr() of LibTorch's options.
  virtual double lr_number() const noexcept = 0;

 protected:
  FusedOptions() = default;
  /// Throws ArgumentError unless `lr` has one element, requires no gradient and is float32. On the CPU any
  /// floating-point type is allowed.
  explicit FusedOptions(at::Tensor lr);
  FusedOptions(const FusedOptions&) = default;
  FusedOptions& operator=(const FusedOptions&) = default;

  void set_maximize(bool value) noexcept { maximize_ = value; }
  double tensor_value() const;
  double filled_lr() const noexcept { return filled_lr_; }
  bool has_same_extras(const FusedOptions& other) const noexcept {
    return maximize_ == other.maximize_ && lr_tensor_.is_same(other.lr_tensor_);
  }
  void read_extras(torch::serialize::InputArchive& archive);
  void write_extras(torch::serialize::OutputArchive& archive) const;

 private:
  friend class FusedOptimizer;

  bool maximize_ = false;
  at::Tensor lr_tensor_;
  double filled_lr_ = 0;
};

/// The options of LibTorch's optimizer (`Base`) with FusedOptions added. Code that sets LibTorch's options
/// works unchanged, such as `static_cast<torch::optim::AdamOptions&>(group.options()).lr(0.1)`.
template <typename Derived, typename Base>
class FusedOptionsOf : public Base, public FusedOptions {
 public:
  /// Converts LibTorch's options.
  FusedOptionsOf(const Base& options) : Base(options) {}  // NOLINT: implicit as in LibTorch
  explicit FusedOptionsOf(double lr) : Base(lr) {}
  /// The learning rate as a tensor on any device, which a captured graph reads: change it with set_lr() or in
  /// place. A scheduler that reads the rate synchronizes with the device.
  explicit FusedOptionsOf(at::Tensor lr) : Base(0.0), FusedOptions(std::move(lr)) {
    Base::lr(this->filled_lr());
  }

  using FusedOptions::maximize;
  Derived& maximize(bool value) noexcept {
    this->set_maximize(value);
    return self();
  }
  /// The learning rate as a number; after set_lr() the tensor holds it too.
  const double& lr() const noexcept { return Base::lr(); }
  double& lr() noexcept { return Base::lr(); }
  Derived& lr(double value) { return this->set_lr(value), self(); }
  /// Factor of the L2 penalty, or of AdamW's decoupled decay.
  const double& weight_decay() const noexcept { return Base::weight_decay(); }
  double& weight_decay() noexcept { return Base::weight_decay(); }
  Derived& weight_decay(double value) { return Base::weight_decay(value), self(); }

  double lr_number() const noexcept override { return Base::lr(); }
  /// The learning rate of the next step: the last value set in the tensor, by set_lr() or in LibTorch's
  /// options.
  double get_lr() const override {
    return this->lr_tensor().defined() && !this->is_lr_tensor_stale() ? this->tensor_value() : Base::lr();
  }
  void set_lr(const double value) override {
    Base::lr(value);
    this->fill_lr_tensor(value);
  }
  void serialize(torch::serialize::InputArchive& archive) override {
    Base::serialize(archive);
    this->read_extras(archive);
  }
  void serialize(torch::serialize::OutputArchive& archive) const override {
    Base plain(*this);
    plain.set_lr(get_lr());
    plain.serialize(archive);
    this->write_extras(archive);
  }

 protected:
  Derived& self() noexcept { return static_cast<Derived&>(*this); }
  bool equals(const Derived& other) const {
    return static_cast<const Base&>(*this) == static_cast<const Base&>(other) && has_same_extras(other);
  }

 private:
  std::unique_ptr<torch::optim::OptimizerOptions> clone() const override {
    return std::make_unique<Derived>(static_cast<const Derived&>(*this));
  }
};

/// Updates all parameters of one device and dtype with one call of LibTorch's fused kernels. All state is on
/// the parameters' device, the step count included, so that GraphedStep can capture it. Parameters are dense
/// floating-point tensors with dense gradients, in any memory layout; gradients and states in another layout
/// are converted first. See FusedAdam, FusedAdamW, FusedSGD. PyTorch: `fused=True`.
class FusedOptimizer : public torch::optim::Optimizer {
 public:
  /// Adds a group. A parameter that occurs repeatedly in it, such as a shared weight, counts once; in
  /// Python twice. Options are merged with the defaults as in LibTorch: a value equal to that of
  /// default-constructed options is replaced by the default. If the default rate is a tensor, the first group
  /// that uses it shares it, and each later one gets a copy. Groups that specify the same tensor share the
  /// rate.
  ///
  /// Call this function, not that of torch::optim::Optimizer&, which ignores `maximize` and tensors. Groups
  /// added that way, or changed by set_options(), are checked and converted by the next step(),
  /// update_lr_tensors() or load().
  ///
  /// Throws ArgumentError for a parameter that is in another group or that the kernels do not support, for
  /// options of another optimizer, and for invalid values.
  void add_param_group(const torch::optim::OptimizerParamGroup& param_group);

  /// Steps all groups. Throws ArgumentError naming a parameter or gradient that the kernels do not support,
  /// before any group is stepped.
  at::Tensor step(LossClosure closure = nullptr) override;

  /// Copies learning rates that were set through LibTorch's options to their tensors. step() calls it, and
  /// GraphedStep before each replay.
  void update_lr_tensors();

  /// A float32 tensor of one element by which step() divides the gradients in place, or undefined. GradScaler
  /// sets it and found_inf() during its step(). PyTorch: the attributes `grad_scale` and `found_inf`.
  const at::Tensor& grad_scale() const noexcept { return grad_scale_; }
  void grad_scale(at::Tensor scale) { grad_scale_ = std::move(scale); }
  /// A float32 tensor of one element, or undefined. If it is 1, step() changes nothing.
  const at::Tensor& found_inf() const noexcept { return found_inf_; }
  void found_inf(at::Tensor found) { found_inf_ = std::move(found); }

 protected:
  explicit FusedOptimizer(std::unique_ptr<torch::optim::OptimizerOptions> defaults)
      : Optimizer(std::vector<torch::optim::OptimizerParamGroup>{}, std::move(defaults)) {}

  /// Checks the defaults and adds the groups. Called by constructors.
  void begin(const std::vector<torch::optim::OptimizerParamGroup>& param_groups);
  /// Converts `given`, which are options of this class or LibTorch's. Throws ArgumentError for others.
  virtual std::unique_ptr<torch::optim::OptimizerOptions> own_options(
      const torch::optim::OptimizerOptions& given) const = 0;
  /// Throws ArgumentError for invalid values in options of this class.
  virtual void check_values(const torch::optim::OptimizerOptions& options) const = 0;
  /// The class name, for messages.
  virtual const char* name() const noexcept = 0;
  /// Collects and checks the parameters of `group` that have gradients, and returns the function that steps
  /// them. step() prepares all groups, without autograd and after update_lr_tensors(), before it calls the
  /// first of these functions, so that an error in one group leaves every group as it was. `group`:
  /// param_groups()[index], with options of this class. `index`: for messages.
  ///
  /// Throws ArgumentError for a parameter, gradient or state that the kernels do not support. Parameters and
  /// gradients do not change before the returned function is called. States may be created, with their
  /// initial values, or converted to their parameter's layout.
  ///
  /// The returned function refers to this optimizer and to the options of the group: call it once, before
  /// groups, options or gradients change. It reads grad_scale() and found_inf(), divides the gradients by
  /// grad_scale(), and changes the parameters and states unless found_inf() is 1.
  virtual std::function<void()> prepare_group(const torch::optim::OptimizerParamGroup& group,
                                              std::size_t index) = 0;

  /// Wrap torch::optim::serialize(), which casts options to this class and does not support tensors as rates.
  /// Groups keep their tensors, even if `read` throws.
  void check_groups() const;
  void load_with(const std::function<void()>& read);

 private:
  bool has_own_options(const torch::optim::OptimizerParamGroup& group) const;
  void merge_extras(torch::optim::OptimizerParamGroup& added, const FusedOptions& given) const;
  std::vector<at::Tensor> checked_parameters(const torch::optim::OptimizerParamGroup& group,
                                             std::size_t index) const;
  void adopt_groups();
  void unshare_rate(std::size_t index);
  void give_back(const std::vector<at::Tensor>& lr_tensors);

  std::size_t adopted_ = 0;  // groups that add_param_group() of this class added or adopt_groups() converted
  at::Tensor grad_scale_;
  at::Tensor found_inf_;
};

/// The members of FusedAdam, FusedAdamW and FusedSGD. Arguments are given as options, or by name as in Python:
///
///     optim::AdamW optimizer(net->parameters(), {.lr = 3e-4, .weight_decay = 0.1});
///     optim::AdamW grouped({{.params = decay, .weight_decay = 0.1}, {.params = others}}, {.lr = 3e-4, .weight_decay = 0});
template <typename Options>
class FusedOptimizerOf : public FusedOptimizer {
 public:
  /// The arguments by name.
  using Arguments = typename Options::Arguments;
  /// A group of parameters by name.
  using Group = typename Options::Group;
  explicit FusedOptimizerOf(const std::vector<torch::optim::OptimizerParamGroup>& param_groups,
                            const Options& defaults = {});
  explicit FusedOptimizerOf(std::vector<at::Tensor> params, const Options& defaults = {})
      : FusedOptimizerOf(std::vector{torch::optim::OptimizerParamGroup(std::move(params))}, defaults) {}
  template <typename = void>  // so that `{}` is the options
  FusedOptimizerOf(const std::vector<torch::optim::OptimizerParamGroup>& param_groups,
                   const Arguments& arguments)
      : FusedOptimizerOf(param_groups, Options(arguments)) {}
  template <typename = void>
  FusedOptimizerOf(std::vector<at::Tensor> params, const Arguments& arguments)
      : FusedOptimizerOf(std::move(params), Options(arguments)) {}
  /// Groups by name. A group takes from `arguments` the values that it leaves out. Throws ArgumentError as add_param_group() does.
  template <typename = void>
  explicit FusedOptimizerOf(const std::vector<Group>& groups, const Arguments& arguments = {})
      : FusedOptimizerOf(std::vector<torch::optim::OptimizerParamGroup>{}, Options(arguments)) {
    for (const auto& group : groups) add_group(group);
  }

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 protected:
  std::unique_ptr<torch::optim::OptimizerOptions> own_options(
      const torch::optim::OptimizerOptions& given) const override;
  void check_values(const torch::optim::OptimizerOptions& options) const override;
  const char* name() const noexcept override;
  std::function<void()> prepare_group(const torch::optim::OptimizerParamGroup& group,
                                      std::size_t index) override;

 private:
  void add_group(const Group& group);
};

/// The options of FusedAdam and FusedAdamW: those of LibTorch (`Base`) with `maximize` and a tensor as the
/// learning rate.
template <typename Base>
class FusedAdamOptionsOf : public FusedOptionsOf<FusedAdamOptionsOf<Base>, Base> {
  using Parent = FusedOptionsOf<FusedAdamOptionsOf<Base>, Base>;

 public:
  using Parent::Parent;
  /// Two decay rates.
  using Betas = std::tuple<double, double>;
  /// The arguments by name.
  using Arguments =
      std::conditional_t<std::is_same_v<Base, torch::optim::AdamWOptions>, AdamWArguments, AdamArguments>;
  /// A group of parameters by name.
  using Group = AdamGroup;

  FusedAdamOptionsOf(double lr = 1e-3) : Parent(lr) {}  // NOLINT: implicit as in LibTorch
  explicit FusedAdamOptionsOf(const Arguments& arguments) : Parent(arguments.lr) {
    betas(arguments.betas).eps(arguments.eps).amsgrad(arguments.amsgrad);
    this->weight_decay(arguments.weight_decay).maximize(arguments.maximize);
  }

  /// Decay rates of the averages of gradients and of their squares; default: 0.9 and 0.999.
  const Betas& betas() const noexcept { return Base::betas(); }
  Betas& betas() noexcept { return Base::betas(); }
  FusedAdamOptionsOf& betas(Betas value) { return Base::betas(value), *this; }
  /// Added to the denominator; default: 1e-8.
  const double& eps() const noexcept { return Base::eps(); }
  double& eps() noexcept { return Base::eps(); }
  FusedAdamOptionsOf& eps(double value) { return Base::eps(value), *this; }
  /// Divides by the greatest average of squares so far; default: false.
  const bool& amsgrad() const noexcept { return Base::amsgrad(); }
  bool& amsgrad() noexcept { return Base::amsgrad(); }
  FusedAdamOptionsOf& amsgrad(bool value) { return Base::amsgrad(value), *this; }
  /// Sets what the group has.
  void set(const Group& group) {
    if (group.lr) this->lr(*group.lr);
    if (group.betas) betas(*group.betas);
    if (group.eps) eps(*group.eps);
    if (group.weight_decay) this->weight_decay(*group.weight_decay);
    if (group.amsgrad) amsgrad(*group.amsgrad);
    if (group.maximize) this->maximize(*group.maximize);
  }
  bool operator==(const FusedAdamOptionsOf& other) const { return this->equals(other); }
};

/// Options of FusedAdam: those of torch::optim::Adam, with maximize() and lr_tensor().
using FusedAdamOptions = FusedAdamOptionsOf<torch::optim::AdamOptions>;
/// Options of FusedAdamW: those of torch::optim::AdamW, with maximize() and lr_tensor().
using FusedAdamWOptions = FusedAdamOptionsOf<torch::optim::AdamWOptions>;

/// The state of FusedAdam and FusedAdamW per parameter, on its device: `step` in float32, the others in the
/// parameter's dtype and layout. `max_exp_avg_sq` is undefined without amsgrad.
struct FusedAdamParamState : torch::optim::OptimizerCloneableParamState<FusedAdamParamState> {
  /// Steps made.
  TORCH_ARG(at::Tensor, step);
  /// Average of the gradients.
  TORCH_ARG(at::Tensor, exp_avg);
  /// Average of the squares of the gradients.
  TORCH_ARG(at::Tensor, exp_avg_sq);
  /// Greatest exp_avg_sq so far, with amsgrad.
  TORCH_ARG(at::Tensor, max_exp_avg_sq);

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

extern template class FusedOptimizerOf<FusedAdamOptions>;
extern template class FusedOptimizerOf<FusedAdamWOptions>;

/// Adam with fused kernels, bitwise equal to PyTorch: `torch.optim.Adam(params, fused=True)`.
using FusedAdam = FusedOptimizerOf<FusedAdamOptions>;

/// AdamW with fused kernels, bitwise equal to PyTorch: `torch.optim.AdamW(params, fused=True)`.
using FusedAdamW = FusedOptimizerOf<FusedAdamWOptions>;

/// torch::optim::SGDOptions with `maximize`, a tensor as the learning rate, and Python's default rate.
struct FusedSGDOptions : FusedOptionsOf<FusedSGDOptions, torch::optim::SGDOptions> {
  using FusedOptionsOf::FusedOptionsOf;
  /// The arguments by name.
  using Arguments = SGDArguments;
  /// A group of parameters by name.
  using Group = SGDGroup;
  FusedSGDOptions(double lr = 1e-3) : FusedOptionsOf(lr) {}  // NOLINT: implicit as in LibTorch
  explicit FusedSGDOptions(const Arguments& arguments) : FusedOptionsOf(arguments.lr) {
    momentum(arguments.momentum).dampening(arguments.dampening).nesterov(arguments.nesterov);
    weight_decay(arguments.weight_decay).maximize(arguments.maximize);
  }

  /// Factor of the earlier steps' gradients; default: 0.
  const double& momentum() const noexcept { return SGDOptions::momentum(); }
  double& momentum() noexcept { return SGDOptions::momentum(); }
  FusedSGDOptions& momentum(double value) { return SGDOptions::momentum(value), *this; }
  /// The share of the gradient that does not enter the momentum; default: 0.
  const double& dampening() const noexcept { return SGDOptions::dampening(); }
  double& dampening() noexcept { return SGDOptions::dampening(); }
  FusedSGDOptions& dampening(double value) { return SGDOptions::dampening(value), *this; }
  /// Nesterov momentum; default: false.
  const bool& nesterov() const noexcept { return SGDOptions::nesterov(); }
  bool& nesterov() noexcept { return SGDOptions::nesterov(); }
  FusedSGDOptions& nesterov(bool value) { return SGDOptions::nesterov(value), *this; }
  /// Sets what the group has.
  void set(const Group& group) {
    if (group.lr) lr(*group.lr);
    if (group.momentum) momentum(*group.momentum);
    if (group.dampening) dampening(*group.dampening);
    if (group.weight_decay) weight_decay(*group.weight_decay);
    if (group.nesterov) nesterov(*group.nesterov);
    if (group.maximize) maximize(*group.maximize);
  }
  bool operator==(const FusedSGDOptions& other) const { return equals(other); }
};

extern template class FusedOptimizerOf<FusedSGDOptions>;

/// SGD with fused kernels, bitwise equal to PyTorch: `torch.optim.SGD(params, fused=True)`. The state of a
/// parameter is LibTorch's SGDParamState.
///
/// Two differences from Python: parameters of one group may get their first gradients in different steps, and
/// if found_inf skips the very first step, momentum starts at zero instead of uninitialized memory. The next
/// step then counts as the second, with dampening, because the host does not know that the first was skipped.
using FusedSGD = FusedOptimizerOf<FusedSGDOptions>;

/// PyTorch's name: the fused optimizer. Those of `torch::optim` are LibTorch's own.
using Adam = FusedAdam;
/// PyTorch's name: the fused optimizer. Those of `torch::optim` are LibTorch's own.
using AdamW = FusedAdamW;
/// PyTorch's name: the fused optimizer. For sparse gradients use torch::optim::SGD.
using SGD = FusedSGD;

}  // namespace lockstep::optim
