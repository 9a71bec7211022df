// SPDX-License-Identifier: BSD-3-Clause
#include "amp/gradient_lists.h"

#include <algorithm>

#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>

#include <lockstep/base/error.h>

namespace lockstep::amp {

void GradientLists::add(const at::Tensor& gradient) {
  auto at = std::ranges::find(devices_, gradient.device(), &std::pair<c10::Device, Lists>::first);
  if (at == devices_.end()) at = devices_.emplace(devices_.end(), gradient.device(), Lists{});
  at->second[gradient.scalar_type()].push_back(gradient);
}

std::vector<at::Tensor> GradientLists::unscale(const at::Tensor& inverse_scale, const at::Tensor& found_inf) {
  std::vector<at::Tensor> found;
  for (auto& [device, lists] : devices_) {
    const auto copied = [&, to = device](const at::Tensor& tensor) {
      return tensor.to(tensor.options().device(to), /*non_blocking=*/!to.is_cpu(), /*copy=*/true);
    };
    found.push_back(copied(found_inf));
    const auto inverse = copied(inverse_scale);
    for (auto& [dtype, gradients] : lists) {
      at::_amp_foreach_non_finite_check_and_unscale_(gradients, found.back(), inverse);
    }
  }
  return found;
}

at::Tensor on_device(const at::Tensor& tensor, c10::Device device) {
  return tensor.to(device, tensor.scalar_type(), /*non_blocking=*/!device.is_cpu());
}

GradientLists gradient_lists(const torch::optim::Optimizer& optimizer, bool allow_half) {
  GradientLists lists;
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      const auto& gradient = parameter.grad();
      if (!gradient.defined()) continue;
      if (gradient.scalar_type() == at::kHalf && !allow_half) {
        throw ArgumentError(
            "GradScaler: unscale_(): a gradient is in float16, where dividing would lose what scaling saved; "
            "keep "
            "the parameters in float32 and let Autocast cast them");
      }
      lists.add(gradient.is_sparse() ? gradient._values() : gradient);
    }
  }
  return lists;
}

}  // namespace lockstep::amp
