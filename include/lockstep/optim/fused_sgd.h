// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/sgd.h>

#include <lockstep/optim/fused_optimizer.h>

namespace lockstep::optim {

/// torch::optim::SGDOptions with `maximize`, a tensor as the learning rate, and Python's default for that.
struct FusedSGDOptions : FusedOptionsOf<FusedSGDOptions, torch::optim::SGDOptions> {
  using FusedOptionsOf::FusedOptionsOf;
  FusedSGDOptions(double lr = 1e-3) : FusedOptionsOf(lr) {}  // NOLINT: as LibTorch's

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

/// PyTorch: `torch.optim.SGD(params, fused=True)`, to the last bit. The state of a parameter is LibTorch's.
///
/// Better than Python's: parameters of one group may get their first gradients in different steps; and where
/// found_inf leaves out the very first step, momentum begins at zero, not with what lay in memory; the next
/// step counts as the second one, with dampening, since nobody on the host knows.
class FusedSGD : public FusedOptimizer {
 public:
  explicit FusedSGD(const std::vector<torch::optim::OptimizerParamGroup>& param_groups,
                    FusedSGDOptions defaults = {});
  explicit FusedSGD(std::vector<at::Tensor> params, FusedSGDOptions defaults = {})
      : FusedSGD({torch::optim::OptimizerParamGroup(std::move(params))}, std::move(defaults)) {}

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 protected:
  std::unique_ptr<torch::optim::OptimizerOptions> own_options(
      const torch::optim::OptimizerOptions& given) const override;
  void check_values(const torch::optim::OptimizerOptions& options) const override;
  const char* name() const noexcept override;
  std::function<void()> prepare_group(const torch::optim::OptimizerParamGroup& group,
                                      std::size_t index) override;
};

}  // namespace lockstep::optim
