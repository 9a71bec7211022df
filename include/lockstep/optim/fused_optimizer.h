// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <lockstep/optim/fused_options.h>

namespace lockstep::optim {

/// An optimizer that updates all parameters of one device and type with one call of LibTorch's fused kernels.
/// All of its state is on the parameters' device, the number of the step too: a GraphedStep captures it.
/// PyTorch: `fused=True`. See FusedAdam, FusedAdamW, FusedSGD.
///
/// Parameters are floating-point tensors without gaps, gradients dense; in whatever layout: a gradient or a
/// state laid out otherwise than its parameter is brought into its layout first.
class FusedOptimizer : public torch::optim::Optimizer {
 public:
  /// Throws ArgumentError for a parameter that another group has or that the kernels do not take, options of
  /// another optimizer and values that make no sense. A parameter that comes again in the group, as a weight
  /// that modules share does in LibTorch's parameters(), is there once, as in Python. Groups' options are
  /// merged with the defaults as in LibTorch: a value equal to that of default-constructed options is the
  /// defaults'. The first group that has its rate from the defaults has their tensor, where that is one; each
  /// other such group gets a copy of its own. Groups that are given one tensor in their options share the
  /// rate.
  ///
  /// LibTorch's function of this name does not know of `maximize` and tensors in a group's options: call this
  /// one, not that of a torch::optim::Optimizer&. What comes in that way, or by set_options(), is checked and
  /// converted at the next step(), bring_rates() or load.
  void add_param_group(const torch::optim::OptimizerParamGroup& param_group);

  /// Throws ArgumentError for parameters and gradients that the kernels do not take, naming them; no group
  /// was stepped then.
  at::Tensor step(LossClosure closure = nullptr) override;

  /// Brings learning rates that were set through LibTorch's options into their tensors, where they are such.
  /// step() does it, and a GraphedStep before each replay.
  void bring_rates();

  /// What gradients are divided by in step(), in place; a float32 tensor of one element, or undefined.
  /// GradScaler sets both around its step(). PyTorch: the attributes of these names.
  const at::Tensor& grad_scale() const noexcept { return grad_scale_; }
  void grad_scale(at::Tensor scale) { grad_scale_ = std::move(scale); }
  /// A float32 tensor of one element, or undefined: where it is 1, step() changes nothing.
  const at::Tensor& found_inf() const noexcept { return found_inf_; }
  void found_inf(at::Tensor found) { found_inf_ = std::move(found); }

 protected:
  explicit FusedOptimizer(std::unique_ptr<torch::optim::OptimizerOptions> defaults)
      : Optimizer(std::vector<torch::optim::OptimizerParamGroup>{}, std::move(defaults)) {}

  /// Checks the defaults and adds the groups. For constructors.
  void begin(const std::vector<torch::optim::OptimizerParamGroup>& param_groups);
  /// Options of this optimizer out of `given`, which are such or LibTorch's. Throws ArgumentError for others.
  virtual std::unique_ptr<torch::optim::OptimizerOptions> own_options(
      const torch::optim::OptimizerOptions& given) const = 0;
  /// Throws ArgumentError for values that make no sense in options of this optimizer.
  virtual void check_values(const torch::optim::OptimizerOptions& options) const = 0;
  /// Name of the class, for errors.
  virtual const char* name() const noexcept = 0;
  /// Gathers and checks the parameters of one group that have gradients. The result steps them; until it is
  /// called, no parameter has changed and none counts as begun.
  virtual std::function<void()> prepare_group(const torch::optim::OptimizerParamGroup& group,
                                              std::size_t index) = 0;

  /// Around torch::optim::serialize() of an archive, which takes options for those of this class and knows
  /// nothing of tensors as rates. Those stay the groups' when `read` throws, too.
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

  std::size_t adopted_ = 0;  // groups that came by add_param_group() of this class, or were taken over
  at::Tensor grad_scale_;
  at::Tensor found_inf_;
};

}  // namespace lockstep::optim
