// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ScopeExit.h>

#include <lockstep/amp/grad_scaler.h>
#include <lockstep/base/log.h>
#include <lockstep/device/device.h>

#include "base/caller_place.h"
#include "base/throw_error.h"
#include "comm/call_site.h"
#include "comm/non_member.h"

namespace lockstep::amp {
namespace {

using at::Tensor;

c10::Device current_device(c10::DeviceType type) { return c10::impl::getDeviceGuardImpl(type)->getDevice(); }

// The gradients of one device, by dtype: as one operator takes them.
struct GradientLists {
  c10::Device device;
  std::map<at::ScalarType, std::vector<Tensor>> lists = {};
};

std::vector<GradientLists> gradient_lists(const torch::optim::Optimizer& optimizer, bool allow_half) {
  std::vector<GradientLists> devices;
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      const auto& gradient = parameter.grad();
      if (!gradient.defined()) continue;
      if (gradient.scalar_type() == at::kHalf && !allow_half) {
        throw ArgumentError(
            "GradScaler: unscale_(): a gradient is in float16, where dividing would lose what scaling saved; "
            "keep the parameters in float32 and let Autocast cast them");
      }
      auto at = std::ranges::find(devices, gradient.device(), &GradientLists::device);
      if (at == devices.end()) at = devices.insert(at, GradientLists{gradient.device()});
      at->lists[gradient.scalar_type()].push_back(gradient.is_sparse() ? gradient._values() : gradient);
    }
  }
  return devices;
}

// Multiplies each gradient in place. Returns one tensor for each device: `found_inf` or, where a gradient is
// not finite, 1. Both arguments have one element and are copied to the devices.
std::vector<Tensor> unscale_lists(std::vector<GradientLists> gradients, const Tensor& inverse_scale,
                                  const Tensor& found_inf) {
  std::vector<Tensor> found;
  for (auto& [device, lists] : gradients) {
    const auto copied = [to = device](const Tensor& tensor) {
      return tensor.to(tensor.options().device(to), /*non_blocking=*/!to.is_cpu(), /*copy=*/true);
    };
    found.push_back(copied(found_inf));
    const auto inverse = copied(inverse_scale);
    for (auto& [dtype, list] : lists) {
      at::_amp_foreach_non_finite_check_and_unscale_(list, found.back(), inverse);
    }
  }
  return found;
}

// Synchronizes only for copies to the CPU, which would otherwise be read before they are complete.
at::Tensor on_device(const at::Tensor& tensor, c10::Device device) {
  return tensor.to(device, tensor.scalar_type(), /*non_blocking=*/!device.is_cpu());
}

bool can_be_enabled(c10::DeviceType device) {
  if (device != c10::DeviceType::CUDA || device_count(device) > 0) return true;
  log(LogLevel::warning, "GradScaler: enabled, but CUDA is not available; it stays off");
  return false;
}

void check_scaler_options(const GradScalerOptions& options) {
  if (!(options.growth_factor > 1))
    throw_error<ArgumentError>("GradScaler: growth_factor must be above 1, not {}", options.growth_factor);
  if (!(options.backoff_factor < 1))
    throw_error<ArgumentError>("GradScaler: backoff_factor must be below 1, not {}", options.backoff_factor);
  if (options.growth_interval < 1) {
    throw_error<ArgumentError>("GradScaler: growth_interval must be 1 or more, not {}",
                               options.growth_interval);
  }
}

// What is 0 where none of `flags` is set.
Tensor sum_on(c10::Device device, const std::vector<Tensor>& flags) {
  Tensor sum;
  for (const auto& flag : flags) {
    const auto here = on_device(flag, device);
    sum = sum.defined() ? sum + here : here;
  }
  return sum;
}

Tensor single(double value, at::ScalarType dtype, c10::Device device) {
  return at::full({}, value, at::TensorOptions().dtype(dtype).device(device));
}

}  // namespace

GradScaler::GradScaler(DeviceId device, const GradScalerOptions& options, std::source_location where)
    : enabled_(options.enabled && can_be_enabled(c10::Device(device).type())),
      device_(c10::Device(device).type()),
      group_(options.process_group),
      init_scale_(options.init_scale),
      growth_factor_(options.growth_factor),
      backoff_factor_(options.backoff_factor),
      growth_interval_(options.growth_interval) {
  const CallerPlace place(where);
  comm::require_member(group_, "GradScaler");
  if (enabled_) check_scaler_options(options);
}

void GradScaler::check_scaled(const char* function) const {
  if (scale_.defined()) return;
  throw_error<ArgumentError>(
      "GradScaler: {} before any scale(): multiply the loss by it, scaler.scale(loss).backward(), earlier in "
      "the iteration",
      function);
}

void GradScaler::begin(c10::Device device) {
  if (scale_.defined()) return;
  scale_ = single(init_scale_, at::kFloat, device);
  growth_tracker_ = single(static_cast<double>(init_growth_tracker_), at::kInt, device);
}

Tensor GradScaler::scale(const Tensor& outputs) {
  if (!enabled_) return outputs;
  begin(outputs.device());
  return outputs * on_device(scale_, outputs.device());
}

std::vector<Tensor> GradScaler::scale(const std::vector<Tensor>& outputs) {
  std::vector<Tensor> scaled;
  for (const auto& output : outputs) scaled.push_back(scale(output));
  return scaled;
}

// One flag for all devices and all ranks of the group.
Tensor GradScaler::agreed(const std::vector<Tensor>& found_infs, std::source_location where) const {
  auto flag = at::zeros({}, scale_.options());
  for (const auto& found : found_infs) flag += on_device(found, flag.device());
  const comm::CallSite site(where, "whether gradients overflow");
  group_->all_reduce(flag, ReduceOp::MAX);
  return flag;
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer, std::source_location where) {
  const CallerPlace place(where);
  if (!enabled_) return;
  // A rank without the loss, such as that of an early stage of a pipeline, steps with the others of its
  // group.
  if (group_) begin(current_device(device_));
  check_scaled("unscale_()");
  auto& state = states_[&optimizer];
  if (state.stage == Stage::unscaled) {
    throw ArgumentError(
        "GradScaler: unscale_() was already called for this optimizer since the last update(); a second time "
        "would divide its gradients twice");
  }
  if (state.stage == Stage::stepped) {
    throw ArgumentError(
        "GradScaler: unscale_() after step() of the same optimizer; call update() in between");
  }
  look_for_infs(optimizer, state, /*unscale=*/true, where);
}

void GradScaler::look_for_infs(const torch::optim::Optimizer& optimizer, OptimizerState& state, bool unscale,
                               std::source_location where) {
  const c10::NoGradGuard no_grad;
  auto gradients = gradient_lists(optimizer, /*allow_half=*/!unscale);
  // The reciprocal in double, as in PyTorch: in float it may be off by a bit.
  const auto factor =
      unscale ? scale_.to(at::kDouble).reciprocal().to(at::kFloat) : at::ones({}, scale_.options());
  auto found_infs = unscale_lists(std::move(gradients), factor, at::zeros({}, scale_.options()));
  if (unscale) state.stage = Stage::unscaled;  // also where the other ranks do not answer: not a second time
  if (group_) found_infs = {agreed(found_infs, where)};
  state.found_infs = std::move(found_infs);
}

bool GradScaler::step(torch::optim::Optimizer& optimizer, std::source_location where) {
  const CallerPlace place(where);
  if (!enabled_) {
    optimizer.step();
    return true;
  }
  if (group_) begin(current_device(device_));
  check_scaled("step()");
  auto& state = states_[&optimizer];
  if (state.stage == Stage::stepped)
    throw ArgumentError("GradScaler: step() was already called for this optimizer since the last update()");
  auto* fused = dynamic_cast<optim::FusedOptimizer*>(&optimizer);
  if (state.stage == Stage::ready) look_for_infs(optimizer, state, /*unscale=*/fused == nullptr, where);
  if (state.found_infs.empty()) {
    throw ArgumentError(
        "GradScaler: step(): none of the optimizer's parameters has a gradient; was backward() called?");
  }
  if (fused != nullptr) {
    step_fused(*fused, state);
    state.stage = Stage::stepped;
    return true;
  }
  const bool found =
      std::ranges::any_of(state.found_infs, [](const Tensor& each) { return each.item<float>() != 0; });
  if (!found) optimizer.step();
  state.stage = Stage::stepped;
  return !found;
}

void GradScaler::step_fused(optim::FusedOptimizer& optimizer, const OptimizerState& state) const {
  // The optimizer forgets both after the step, as in PyTorch.
  const auto forget = c10::make_scope_exit([&optimizer] {
    optimizer.grad_scale({});
    optimizer.found_inf({});
  });
  const c10::NoGradGuard no_grad;
  // The kernels compare with 1, which the sum of what two devices found is not.
  optimizer.found_inf(sum_on(scale_.device(), state.found_infs).clamp_max(1));
  if (state.stage == Stage::ready) {
    const auto& given = optimizer.grad_scale();
    optimizer.grad_scale(given.defined() ? scale_ * given : scale_);
  }
  optimizer.step();
}

Tensor GradScaler::step(torch::optim::Optimizer& optimizer,
                        const torch::optim::Optimizer::LossClosure& closure, std::source_location where) {
  const CallerPlace place(where);
  if (!enabled_) return optimizer.step(closure);
  throw ArgumentError(
      "GradScaler: step() with a closure: its gradients would have to be unscaled within the optimizer; "
      "compute them before, or make the scaler with enabled = false");
}

Tensor GradScaler::found_any() const {
  std::vector<Tensor> flags;
  for (const auto& [optimizer, state] : states_) {
    flags.insert(flags.end(), state.found_infs.begin(), state.found_infs.end());
  }
  if (!flags.empty()) return sum_on(scale_.device(), flags);
  throw ArgumentError(
      "GradScaler: update() without any step() or unscale_() since the last update(): the gradients were not "
      "checked for infs");
}

void GradScaler::update(std::source_location where) {
  const CallerPlace place(where);
  if (!enabled_) return;
  check_scaled("update()");
  const auto found = found_any();
  at::_amp_update_scale_(scale_, growth_tracker_, found, growth_factor_, backoff_factor_, growth_interval_);
  states_.clear();
}

void GradScaler::update(double new_scale, std::source_location where) {
  const CallerPlace place(where);
  if (!enabled_) return;
  check_scaled("update()");
  scale_.fill_(new_scale);
  states_.clear();
}

void GradScaler::update(const Tensor& new_scale, std::source_location where) {
  const CallerPlace place(where);
  if (!enabled_) return;
  check_scaled("update()");
  if (new_scale.device().type() != device_ || new_scale.numel() != 1 || new_scale.requires_grad()) {
    throw_error<ArgumentError>(
        "GradScaler: update(): a tensor has to have one element, be on {} and require no gradient; this has "
        "{} on {}{}",
        c10::DeviceTypeName(device_, /*lower_case=*/true), new_scale.numel(), new_scale.device().str(),
        new_scale.requires_grad() ? " and requires one" : "");
  }
  scale_.copy_(new_scale.reshape({}));
  states_.clear();
}

double GradScaler::get_scale() const {
  if (!enabled_) return 1.0;
  return scale_.defined() ? scale_.item<double>() : init_scale_;
}

Dict GradScaler::state_dict() const {
  if (!enabled_) return {};
  const auto tracker =
      growth_tracker_.defined() ? growth_tracker_.item<std::int64_t>() : init_growth_tracker_;
  return {{"scale", get_scale()},
          {"growth_factor", growth_factor_},
          {"backoff_factor", backoff_factor_},
          {"growth_interval", growth_interval_},
          {"_growth_tracker", tracker}};
}

void GradScaler::load_state_dict(const Dict& state_dict, std::source_location where) {
  const CallerPlace place(where);
  if (!enabled_) return;
  if (state_dict.empty()) {
    throw CheckpointError(
        "GradScaler: the state dict is empty; was it saved from a scaler that was not enabled?");
  }
  // All is read before anything is changed.
  std::tie(init_scale_, growth_factor_, backoff_factor_, growth_interval_, init_growth_tracker_) =
      std::tuple{state_dict.at("scale").as_double(), state_dict.at("growth_factor").as_double(),
                 state_dict.at("backoff_factor").as_double(), state_dict.at("growth_interval").as_int(),
                 state_dict.at("_growth_tracker").as_int()};
  states_.clear();
  if (!scale_.defined()) return;
  scale_.fill_(init_scale_);
  growth_tracker_.fill_(init_growth_tracker_);
}

}  // namespace lockstep::amp
