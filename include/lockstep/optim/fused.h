// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <lockstep/optim/fused_optimizer.h>

namespace lockstep::optim {

/// The options of FusedAdam and FusedAdamW: those of LibTorch (`Base`) with `maximize` and a tensor as the
/// learning rate.
template <typename Base>
class FusedAdamOptionsOf : public FusedOptionsOf<FusedAdamOptionsOf<Base>, Base> {
  using Parent = FusedOptionsOf<FusedAdamOptionsOf<Base>, Base>;

 public:
  using Parent::Parent;
  using Betas = std::tuple<double, double>;

  FusedAdamOptionsOf(double lr = 1e-3) : Parent(lr) {}  // NOLINT: implicit as in LibTorch

  const Betas& betas() const noexcept { return Base::betas(); }
  Betas& betas() noexcept { return Base::betas(); }
  FusedAdamOptionsOf& betas(Betas value) { return Base::betas(value), *this; }
  const double& eps() const noexcept { return Base::eps(); }
  double& eps() noexcept { return Base::eps(); }
  FusedAdamOptionsOf& eps(double value) { return Base::eps(value), *this; }
  const bool& amsgrad() const noexcept { return Base::amsgrad(); }
  bool& amsgrad() noexcept { return Base::amsgrad(); }
  FusedAdamOptionsOf& amsgrad(bool value) { return Base::amsgrad(value), *this; }
  bool operator==(const FusedAdamOptionsOf& other) const { return this->equals(other); }
};

using FusedAdamOptions = FusedAdamOptionsOf<torch::optim::AdamOptions>;
using FusedAdamWOptions = FusedAdamOptionsOf<torch::optim::AdamWOptions>;

/// The state of FusedAdam and FusedAdamW per parameter, on its device: `step` in float32, the others in the
/// parameter's dtype and layout. `max_exp_avg_sq` is undefined without amsgrad.
struct FusedAdamParamState : torch::optim::OptimizerCloneableParamState<FusedAdamParamState> {
  TORCH_ARG(at::Tensor, step);
  TORCH_ARG(at::Tensor, exp_avg);
  TORCH_ARG(at::Tensor, exp_avg_sq);
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
  FusedSGDOptions(double lr = 1e-3) : FusedOptionsOf(lr) {}  // NOLINT: implicit as in LibTorch

  const double& momentum() const noexcept { return SGDOptions::momentum(); }
  double& momentum() noexcept { return SGDOptions::momentum(); }
  FusedSGDOptions& momentum(double value) { return SGDOptions::momentum(value), *this; }
  const double& dampening() const noexcept { return SGDOptions::dampening(); }
  double& dampening() noexcept { return SGDOptions::dampening(); }
  FusedSGDOptions& dampening(double value) { return SGDOptions::dampening(value), *this; }
  const bool& nesterov() const noexcept { return SGDOptions::nesterov(); }
  bool& nesterov() noexcept { return SGDOptions::nesterov(); }
  FusedSGDOptions& nesterov(bool value) { return SGDOptions::nesterov(value), *this; }
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

}  // namespace lockstep::optim
