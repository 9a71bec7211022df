// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <torch/serialize/archive.h>

#include <lockstep/base/error.h>
#include <lockstep/optim/fused_adam.h>

#include "optim/fused_adam_step.h"
#include "optim/fused_checks.h"

namespace lockstep::optim {
namespace {

using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamGroup;

constexpr const char* kAdam = "FusedAdam";
constexpr const char* kAdamW = "FusedAdamW";

template <typename Options>
void check_adam(const OptimizerOptions& given, const char* name) {
  const auto& options = dynamic_cast<const Options&>(given);
  check_at_least_zero(options.lr(), "lr", name);
  check_at_least_zero(options.eps(), "eps", name);
  check_at_least_zero(options.weight_decay(), "weight_decay", name);
  for (const auto beta : {std::get<0>(options.betas()), std::get<1>(options.betas())}) {
    if (beta >= 0 && beta < 1) continue;
    throw ArgumentError(fmt::format("{}: betas must be at least 0 and below 1, not {}", name, beta));
  }
}

// `fused`: LibTorch's function, with the rate as a number or as a tensor.
template <typename Options, typename Fused>
std::function<void()> prepared_adam(FusedOptimizer& optimizer, const char* name,
                                    const OptimizerParamGroup& group, std::size_t index, Fused fused) {
  const auto& options = dynamic_cast<const Options&>(group.options());
  const auto kernel = [&options, fused](FusedAdamStep::Lists& lists, const auto& rate, const auto& grad_scale,
                                        const auto& found_inf) {
    const auto call = [&](const auto& lr) {
      fused(lists.parameters, lists.gradients.list(), lists.exp_avgs, lists.exp_avg_sqs,
            lists.max_exp_avg_sqs, lists.steps, lr, std::get<0>(options.betas()),
            std::get<1>(options.betas()), options.weight_decay(), options.eps(), options.amsgrad(),
            options.maximize(), grad_scale, found_inf);
    };
    rate ? call(*rate) : call(options.lr());
  };
  const auto step = std::make_shared<FusedAdamStep>(optimizer, name);
  step->gather(group, index, options.amsgrad());
  return [step, &options, kernel] { step->run(options.lr_tensor(), kernel); };
}

void read_tensor(torch::serialize::InputArchive& archive, const char* key, at::Tensor& tensor) {
  c10::IValue value;
  if (archive.try_read(key, value)) tensor = value.toTensor();
}

}  // namespace

void FusedAdamParamState::serialize(torch::serialize::OutputArchive& archive) const {
  archive.write("step", c10::IValue(step()));
  archive.write("exp_avg", c10::IValue(exp_avg()));
  archive.write("exp_avg_sq", c10::IValue(exp_avg_sq()));
  if (max_exp_avg_sq().defined()) archive.write("max_exp_avg_sq", c10::IValue(max_exp_avg_sq()));
}

// LibTorch's Adam and AdamW, whose archives fit as well, count in a number.
void FusedAdamParamState::serialize(torch::serialize::InputArchive& archive) {
  read_tensor(archive, "exp_avg", exp_avg());
  read_tensor(archive, "exp_avg_sq", exp_avg_sq());
  read_tensor(archive, "max_exp_avg_sq", max_exp_avg_sq());
  c10::IValue count;
  archive.read("step", count);
  const auto options = at::TensorOptions().dtype(at::kFloat).device(exp_avg().device());
  step(count.isInt() ? at::full({}, count.toInt(), options) : count.toTensor());
}

FusedAdam::FusedAdam(const std::vector<OptimizerParamGroup>& param_groups, FusedAdamOptions defaults)
    : FusedOptimizer(std::make_unique<FusedAdamOptions>(std::move(defaults))) {
  begin(param_groups);
}

const char* FusedAdam::name() const noexcept { return kAdam; }

std::function<void()> FusedAdam::prepare_group(const OptimizerParamGroup& group, std::size_t index) {
  return prepared_adam<FusedAdamOptions>(*this, kAdam, group, index, [](auto&&... all) {
    at::_fused_adam_(std::forward<decltype(all)>(all)...);
  });
}

std::unique_ptr<OptimizerOptions> FusedAdam::own_options(const OptimizerOptions& given) const {
  return copied_as<FusedAdamOptions, torch::optim::AdamOptions>(given, kAdam);
}

void FusedAdam::check_values(const OptimizerOptions& options) const {
  check_adam<FusedAdamOptions>(options, kAdam);
}

void FusedAdam::save(torch::serialize::OutputArchive& archive) const {
  check_groups();
  torch::optim::serialize<FusedAdamParamState, FusedAdamOptions>(archive, *this);
}

void FusedAdam::load(torch::serialize::InputArchive& archive) {
  load_with([&] { torch::optim::serialize<FusedAdamParamState, FusedAdamOptions>(archive, *this); });
}

FusedAdamW::FusedAdamW(const std::vector<OptimizerParamGroup>& param_groups, FusedAdamWOptions defaults)
    : FusedOptimizer(std::make_unique<FusedAdamWOptions>(std::move(defaults))) {
  begin(param_groups);
}

const char* FusedAdamW::name() const noexcept { return kAdamW; }

std::function<void()> FusedAdamW::prepare_group(const OptimizerParamGroup& group, std::size_t index) {
  return prepared_adam<FusedAdamWOptions>(*this, kAdamW, group, index, [](auto&&... all) {
    at::_fused_adamw_(std::forward<decltype(all)>(all)...);
  });
}

std::unique_ptr<OptimizerOptions> FusedAdamW::own_options(const OptimizerOptions& given) const {
  return copied_as<FusedAdamWOptions, torch::optim::AdamWOptions>(given, kAdamW);
}

void FusedAdamW::check_values(const OptimizerOptions& options) const {
  check_adam<FusedAdamWOptions>(options, kAdamW);
}

void FusedAdamW::save(torch::serialize::OutputArchive& archive) const {
  check_groups();
  torch::optim::serialize<FusedAdamParamState, FusedAdamWOptions>(archive, *this);
}

void FusedAdamW::load(torch::serialize::InputArchive& archive) {
  load_with([&] { torch::optim::serialize<FusedAdamParamState, FusedAdamWOptions>(archive, *this); });
}

}  // namespace lockstep::optim
