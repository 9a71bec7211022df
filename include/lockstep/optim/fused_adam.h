// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include <lockstep/optim/fused_optimizer.h>

namespace lockstep::optim {

/// What the options of FusedAdam and FusedAdamW share: setters that can be chained.
template <typename Derived, typename Base>
class FusedAdamOptionsOf : public FusedOptionsOf<Derived, Base> {
 public:
  using FusedOptionsOf<Derived, Base>::FusedOptionsOf;
  using Betas = std::tuple<double, double>;

  const Betas& betas() const noexcept { return Base::betas(); }
  Betas& betas() noexcept { return Base::betas(); }
  Derived& betas(Betas value) { return Base::betas(value), this->self(); }
  const double& eps() const noexcept { return Base::eps(); }
  double& eps() noexcept { return Base::eps(); }
  Derived& eps(double value) { return Base::eps(value), this->self(); }
  const bool& amsgrad() const noexcept { return Base::amsgrad(); }
  bool& amsgrad() noexcept { return Base::amsgrad(); }
  Derived& amsgrad(bool value) { return Base::amsgrad(value), this->self(); }
};

/// torch::optim::AdamOptions with `maximize` and a tensor as the learning rate.
struct FusedAdamOptions : FusedAdamOptionsOf<FusedAdamOptions, torch::optim::AdamOptions> {
  using FusedAdamOptionsOf::FusedAdamOptionsOf;
  FusedAdamOptions(double lr = 1e-3) : FusedAdamOptionsOf(lr) {}  // NOLINT: as LibTorch's
  bool operator==(const FusedAdamOptions& other) const { return equals(other); }
};

/// torch::optim::AdamWOptions with `maximize` and a tensor as the learning rate.
struct FusedAdamWOptions : FusedAdamOptionsOf<FusedAdamWOptions, torch::optim::AdamWOptions> {
  using FusedAdamOptionsOf::FusedAdamOptionsOf;
  FusedAdamWOptions(double lr = 1e-3) : FusedAdamOptionsOf(lr) {}  // NOLINT: as LibTorch's
  bool operator==(const FusedAdamWOptions& other) const { return equals(other); }
};

/// What FusedAdam and FusedAdamW keep of each parameter, on its device: `step` in float32, the others in its
/// type and layout. `max_exp_avg_sq` is undefined without amsgrad.
struct FusedAdamParamState : torch::optim::OptimizerCloneableParamState<FusedAdamParamState> {
  TORCH_ARG(at::Tensor, step);
  TORCH_ARG(at::Tensor, exp_avg);
  TORCH_ARG(at::Tensor, exp_avg_sq);
  TORCH_ARG(at::Tensor, max_exp_avg_sq);

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

/// PyTorch: `torch.optim.Adam(params, fused=True)`, to the last bit.
class FusedAdam : public FusedOptimizer {
 public:
  explicit FusedAdam(const std::vector<torch::optim::OptimizerParamGroup>& param_groups,
                     FusedAdamOptions defaults = {});
  explicit FusedAdam(std::vector<at::Tensor> params, FusedAdamOptions defaults = {})
      : FusedAdam({torch::optim::OptimizerParamGroup(std::move(params))}, std::move(defaults)) {}

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

/// PyTorch: `torch.optim.AdamW(params, fused=True)`, to the last bit.
class FusedAdamW : public FusedOptimizer {
 public:
  explicit FusedAdamW(const std::vector<torch::optim::OptimizerParamGroup>& param_groups,
                      FusedAdamWOptions defaults = {});
  explicit FusedAdamW(std::vector<at::Tensor> params, FusedAdamWOptions defaults = {})
      : FusedAdamW({torch::optim::OptimizerParamGroup(std::move(params))}, std::move(defaults)) {}

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
