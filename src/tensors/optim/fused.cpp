// SPDX-License-Identifier: BSD-3-Clause
#include <typeinfo>
#include <unordered_map>

#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <fmt/ranges.h>
#include <torch/serialize/archive.h>

#include <lockstep/optim/fused.h>

#include "base/throw_error.h"
#include "optim/fused_steps.h"
#include "optim/unaveraged.h"

namespace lockstep::optim {
namespace {

using torch::optim::OptimizerParamGroup;

constexpr const char* kMaximizeKey = "maximize";

void check_rate(const at::Tensor& lr) {
  if (!lr.defined() || lr.numel() != 1) {
    throw_error<ArgumentError>("a tensor as the learning rate must have one element; this is {}",
                               lr.defined() ? fmt::format("of {}", lr.numel()) : "undefined");
  }
  const bool takes = lr.scalar_type() == at::kFloat || (lr.is_cpu() && lr.is_floating_point());
  if (!takes || lr.requires_grad()) {
    throw_error<ArgumentError>(
        "a tensor as the learning rate must be float32 (on the CPU any floating-point type) and require no "
        "gradient; this is {} on {}{}",
        c10::toString(lr.scalar_type()), lr.device().str(), lr.requires_grad() ? " and requires one" : "");
  }
}

FusedOptions& fused_options(torch::optim::OptimizerOptions& options) {
  return dynamic_cast<FusedOptions&>(options);
}

std::string tensor_text(const at::Tensor& tensor) {
  return fmt::format("{}[{}] on {}", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ","),
                     tensor.device().str());
}

// Strides of dimensions of size 1 are irrelevant.
bool lies_alike(const at::Tensor& left, const at::Tensor& right) {
  for (std::int64_t d = 0; d < left.dim(); ++d) {
    if (left.size(d) != 1 && left.stride(d) != right.stride(d)) return false;
  }
  return true;
}

}  // namespace

FusedOptions::FusedOptions(at::Tensor lr) : lr_tensor_(std::move(lr)) {
  check_rate(lr_tensor_);
  filled_lr_ = tensor_value();
}

void FusedOptions::fill_lr_tensor(double lr) {
  if (!lr_tensor_.defined()) return;
  const c10::NoGradGuard no_grad;
  lr_tensor_.fill_(lr);
  filled_lr_ = lr;
}

double FusedOptions::tensor_value() const { return lr_tensor_.item<double>(); }

void FusedOptions::read_extras(torch::serialize::InputArchive& archive) {
  c10::IValue value;
  maximize_ = archive.try_read(kMaximizeKey, value) && value.toBool();
}

void FusedOptions::write_extras(torch::serialize::OutputArchive& archive) const {
  archive.write(kMaximizeKey, c10::IValue(maximize_));
}

bool FusedOptimizer::has_own_options(const OptimizerParamGroup& group) const {
  const auto& options = group.options();
  const auto& own = defaults();
  return typeid(options) == typeid(own);
}

// Without those that come again.
std::vector<at::Tensor> FusedOptimizer::checked_parameters(const OptimizerParamGroup& group,
                                                           std::size_t index) const {
  std::unordered_map<const void*, std::size_t> groups;
  for (std::size_t g = 0; g < index; ++g) {
    for (const auto& other : param_groups()[g].params()) groups.emplace(other.unsafeGetTensorImpl(), g);
  }
  std::vector<at::Tensor> parameters;
  for (std::size_t i = 0; i < group.params().size(); ++i) {
    const auto& parameter = group.params()[i];
    if (!parameter.defined())
      throw_error<ArgumentError>("{}: parameter {} of group {} is undefined; leave it out", name(), i, index);
    const ParameterName named{name(), index, i, parameter};
    const auto [known, added] = groups.emplace(parameter.unsafeGetTensorImpl(), index);
    if (!added && known->second == index) continue;
    if (!added) {
      throw_error<ArgumentError>("{} is in group {} already; leave it out of one of them", named.text(),
                                 known->second);
    }
    check_parameter(named);
    parameters.push_back(parameter);
  }
  return parameters;
}

void FusedOptimizer::begin(const std::vector<OptimizerParamGroup>& param_groups) {
  check_values(defaults());
  for (const auto& group : param_groups) add_param_group(group);
}

void FusedOptimizer::add_param_group(const OptimizerParamGroup& param_group) {
  adopt_groups();
  const auto index = param_groups().size();
  OptimizerParamGroup group(param_group);
  group.params() = checked_parameters(param_group, index);
  std::unique_ptr<torch::optim::OptimizerOptions> given;
  if (param_group.has_options()) given = own_options(param_group.options());
  Optimizer::add_param_group(group);
  try {
    auto& added = param_groups().back();
    if (given) merge_extras(added, fused_options(*given));
    if (!given || !fused_options(*given).lr_tensor().defined()) unshare_rate(index);
    check_values(added.options());
  } catch (...) {
    param_groups().pop_back();
    throw;
  }
  adopted_ = param_groups().size();
}

// LibTorch merges its own part of the options only, and before 2.12 nothing at all.
void FusedOptimizer::merge_extras(OptimizerParamGroup& added, const FusedOptions& given) const {
  added.set_options(own_options(added.options()));
  auto& merged = fused_options(added.options());
  if (given.maximize()) merged.maximize() = true;
  if (given.lr_tensor().defined()) {
    merged.lr_tensor_ = at::Tensor();  // the one that is given may have been changed in place: not filled
    added.options().set_lr(given.lr_number());
    merged.lr_tensor_ = given.lr_tensor_;
    merged.filled_lr_ = given.filled_lr_;
  } else if (merged.is_lr_tensor_stale()) {
    merged.lr_tensor_ = at::Tensor();  // the group has a number of its own
  }
}

// With one tensor for two groups, whoever sets the rate of one would set that of the other.
void FusedOptimizer::unshare_rate(std::size_t index) {
  auto& rate = fused_options(param_groups()[index].options()).lr_tensor_;
  if (!rate.defined()) return;
  for (std::size_t g = 0; g < index; ++g) {
    if (!rate.is_same(fused_options(param_groups()[g].options()).lr_tensor())) continue;
    rate = rate.clone();
    return;
  }
}

// LibTorch's add_param_group(), through a reference to its class, and set_options() take anything.
void FusedOptimizer::adopt_groups() {
  for (std::size_t g = 0; g < param_groups().size(); ++g) {
    auto& group = param_groups()[g];
    const bool is_new = g >= adopted_;
    const bool is_own = has_own_options(group);
    if (is_own && !is_new) continue;
    if (!is_own) group.set_options(own_options(group.options()));
    check_values(group.options());
    if (!is_new) continue;
    group.params() = checked_parameters(group, g);
    auto& options = fused_options(group.options());
    if (options.is_lr_tensor_stale())
      options.lr_tensor_ = at::Tensor();  // a number beside the defaults' tensor
    unshare_rate(g);
  }
  adopted_ = param_groups().size();
}

at::Tensor FusedOptimizer::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const c10::AutoGradMode with_gradients(true);
    loss = closure();
  }
  refuse_step(name(), param_groups());
  update_lr_tensors();
  const c10::NoGradGuard no_grad;
  std::vector<std::function<void()>> kernels;
  for (std::size_t g = 0; g < param_groups().size(); ++g) {
    kernels.push_back(prepare_group(param_groups()[g], g));
  }
  for (const auto& kernel : kernels) kernel();
  return loss;
}

void FusedOptimizer::update_lr_tensors() {
  adopt_groups();
  for (auto& group : param_groups()) {
    auto& options = fused_options(group.options());
    if (options.is_lr_tensor_stale()) options.fill_lr_tensor(options.lr_number());
  }
}

void FusedOptimizer::check_groups() const {
  for (std::size_t g = 0; g < param_groups().size(); ++g) {
    if (has_own_options(param_groups()[g])) continue;
    throw_error<ArgumentError>(
        "{}: the options of group {} were replaced by options of another class since the last step; call "
        "update_lr_tensors(), which converts or refuses them, before it is saved",
        name(), g);
  }
}

void FusedOptimizer::load_with(const std::function<void()>& read) {
  adopt_groups();
  std::vector<at::Tensor> lr_tensors;
  for (auto& group : param_groups()) lr_tensors.push_back(fused_options(group.options()).lr_tensor());
  try {
    read();
  } catch (...) {
    give_back(lr_tensors);
    throw;
  }
  give_back(lr_tensors);
}

void FusedOptimizer::give_back(const std::vector<at::Tensor>& lr_tensors) {
  for (std::size_t g = 0; g < lr_tensors.size(); ++g) {
    auto& options = param_groups()[g].options();
    auto& kept = fused_options(options).lr_tensor_;
    if (kept.is_same(lr_tensors[g])) continue;
    const auto lr = options.get_lr();
    kept = lr_tensors[g];
    options.set_lr(lr);
  }
}

std::string ParameterName::text() const {
  return fmt::format("{}: parameter {} of group {}, {},", optimizer, index, group, tensor_text(parameter));
}

void check_parameter(const ParameterName& name) {
  if (!name.parameter.is_floating_point()) {
    throw_error<ArgumentError>("{} is not a floating-point tensor; use the optimizer of torch::optim for it",
                               name.text());
  }
  if (name.parameter.layout() == at::kStrided && name.parameter.is_non_overlapping_and_dense()) return;
  throw_error<ArgumentError>(
      "{} has gaps or overlaps in memory, which the fused kernels do not see; make it a tensor of its own by "
      "clone(), or use the optimizer of torch::optim",
      name.text());
}

at::Tensor laid_out(const at::Tensor& tensor, const ParameterName& name, const char* what) {
  const auto& parameter = name.parameter;
  if (!tensor.defined()) {
    throw_error<ArgumentError>(
        "{} has a state without {}; load the state dict of a fused optimizer or of the same one without "
        "fused",
        name.text(), what);
  }
  if (tensor.layout() != at::kStrided) {
    throw_error<ArgumentError>(
        "{} has a sparse {}; fused optimizers take dense ones: use the optimizer of torch::optim, or make "
        "the layer with sparse(false)",
        name.text(), what);
  }
  if (tensor.device() != parameter.device() || tensor.scalar_type() != parameter.scalar_type() ||
      tensor.sizes() != parameter.sizes()) {
    (void)tensor.flatten();  // throws for what takes the place of a gradient of fully_shard()
    throw_error<ArgumentError>(
        "{} has the {} {}; when a parameter has become another kind of tensor, make a new optimizer and load "
        "the old one's state_dict() into it",
        name.text(), what, tensor_text(tensor));
  }
  if (lies_alike(tensor, parameter)) return tensor;
  return at::empty_like(parameter).copy_(tensor);
}

void GradientList::add(const ParameterName& name) {
  const auto& gradient = name.parameter.grad();
  list_.push_back(laid_out(gradient, name, "gradient"));
  if (!list_.back().is_same(gradient)) copied_.emplace_back(gradient, list_.back());
}

void GradientList::copy_back() const {
  for (const auto& [own, copy] : copied_) own.copy_(copy);
}

std::optional<at::Tensor> on_device(const at::Tensor& tensor, c10::Device device) {
  if (!tensor.defined()) return std::nullopt;
  // A non-blocking copy to the CPU would not wait for the values.
  return tensor.to(tensor.options().device(device), /*non_blocking=*/!device.is_cpu());
}

std::optional<at::Tensor> rate_on(const at::Tensor& rate, c10::Device device) {
  if (rate.defined() && rate.is_cpu()) return rate;
  return on_device(rate, device);
}

}  // namespace lockstep::optim
