// SPDX-License-Identifier: BSD-3-Clause
#pragma once

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
  /// Throws ArgumentError for a parameter that another group has, options of another optimizer and values
  /// that make no sense. A parameter that comes again in the group, as a weight that modules share does in
  /// LibTorch's parameters(), is there once, as in Python. Groups' options are merged with the defaults as in
  /// LibTorch: a value equal to that of default-constructed options is the defaults'.
  void add_param_group(const torch::optim::OptimizerParamGroup& param_group);

  /// Throws ArgumentError for parameters and gradients that the kernels do not take, naming them.
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
  /// Steps the parameters of one group that have gradients.
  virtual void step_group(torch::optim::OptimizerParamGroup& group, std::size_t index) = 0;

  /// To be called around torch::optim::serialize() of an archive, which knows nothing of tensors as rates.
  std::vector<at::Tensor> lr_tensors() const;
  void give_back(const std::vector<at::Tensor>& lr_tensors);

 private:
  void merge_extras(torch::optim::OptimizerParamGroup& added, const FusedOptions& given) const;
  std::vector<at::Tensor> new_parameters(const torch::optim::OptimizerParamGroup& group) const;

  at::Tensor grad_scale_;
  at::Tensor found_inf_;
};

}  // namespace lockstep::optim
