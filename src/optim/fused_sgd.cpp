// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <torch/serialize/archive.h>

#include <lockstep/base/error.h>
#include <lockstep/optim/fused_sgd.h>

#include "optim/fused_checks.h"
#include "optim/fused_lists.h"

namespace lockstep::optim {
namespace {

using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamGroup;
using torch::optim::SGDParamState;

constexpr const char* kSgd = "FusedSGD";

struct SgdLists {
  std::vector<at::Tensor> parameters;
  GradientList gradients;
  std::vector<at::Tensor> momentum_buffers;
};

using States = std::remove_reference_t<decltype(std::declval<torch::optim::Optimizer>().state())>;

// Zeros, though the kernel overwrites them: unless found_inf keeps it from that.
SGDParamState& with_buffer(std::unique_ptr<torch::optim::OptimizerParamState>& kept,
                           const ParameterName& name) {
  if (!kept) kept = std::make_unique<SGDParamState>();
  auto& state = dynamic_cast<SGDParamState&>(*kept);
  if (!state.momentum_buffer().defined()) state.momentum_buffer(at::zeros_like(name.parameter));
  state.momentum_buffer(laid_out(state.momentum_buffer(), name, "momentum_buffer"));
  return state;
}

bool has_buffer(const States& states, const at::Tensor& parameter) {
  const auto found = states.find(parameter.unsafeGetTensorImpl());
  return found != states.end() &&
         dynamic_cast<const SGDParamState&>(*found->second).momentum_buffer().defined();
}

CallsOf<SgdLists> gather_sgd(States& states, const OptimizerParamGroup& group, std::size_t index,
                             bool with_momentum) {
  CallsOf<SgdLists> calls;
  for (std::size_t i = 0; i < group.params().size(); ++i) {
    const auto& parameter = group.params()[i];
    if (!parameter.grad().defined()) continue;
    const ParameterName name{kSgd, index, i, parameter};
    check_parameter(name);
    auto& lists = calls.at(parameter, with_momentum && !has_buffer(states, parameter));
    lists.gradients.add(name);
    lists.parameters.push_back(parameter);
    if (!with_momentum) continue;
    auto& state = with_buffer(states[parameter.unsafeGetTensorImpl()], name);
    lists.momentum_buffers.push_back(state.momentum_buffer());
  }
  return calls;
}

}  // namespace

FusedSGD::FusedSGD(const std::vector<OptimizerParamGroup>& param_groups, FusedSGDOptions defaults)
    : FusedOptimizer(std::make_unique<FusedSGDOptions>(std::move(defaults))) {
  begin(param_groups);
}

void FusedSGD::step_group(OptimizerParamGroup& group, std::size_t index) {
  const auto& options = dynamic_cast<const FusedSGDOptions&>(group.options());
  auto calls = gather_sgd(state(), group, index, options.momentum() != 0);
  for (auto& [device, dtype, first, lists] : calls.all()) {
    const auto scale = on_device(grad_scale(), device);
    const auto found = on_device(found_inf(), device);
    const auto call = [&, &lists = lists, first = first](const auto& lr) {
      at::_fused_sgd_(lists.parameters, lists.gradients.list(), lists.momentum_buffers,
                      options.weight_decay(), options.momentum(), lr, options.dampening(), options.nesterov(),
                      options.maximize(), first, scale, found);
    };
    const auto rate = rate_on(options.lr_tensor(), device);
    rate ? call(*rate) : call(options.lr());
    if (scale) lists.gradients.bring_back();
  }
}

std::unique_ptr<OptimizerOptions> FusedSGD::own_options(const OptimizerOptions& given) const {
  return copied_as<FusedSGDOptions, torch::optim::SGDOptions>(given, kSgd);
}

void FusedSGD::check_values(const OptimizerOptions& given) const {
  const auto& options = dynamic_cast<const FusedSGDOptions&>(given);
  check_at_least_zero(options.lr(), "lr", kSgd);
  check_at_least_zero(options.momentum(), "momentum", kSgd);
  check_at_least_zero(options.weight_decay(), "weight_decay", kSgd);
  if (!options.nesterov() || (options.momentum() > 0 && options.dampening() == 0)) return;
  throw ArgumentError(
      fmt::format("{}: nesterov needs a momentum above 0 and no dampening; these are {} and {}", kSgd,
                  options.momentum(), options.dampening()));
}

void FusedSGD::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<SGDParamState, FusedSGDOptions>(archive, *this);
}

void FusedSGD::load(torch::serialize::InputArchive& archive) {
  const auto rates = lr_tensors();
  torch::optim::serialize<SGDParamState, FusedSGDOptions>(archive, *this);
  give_back(rates);
}

}  // namespace lockstep::optim
