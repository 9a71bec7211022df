// SPDX-License-Identifier: BSD-3-Clause
#include "ddp/precision_switch.h"

#include <c10/core/GradMode.h>

namespace lockstep::ddp {

PrecisionSwitch::PrecisionSwitch(const std::vector<modules::NamedTensor>& parameters,
                                 const std::vector<modules::NamedTensor>& buffers,
                                 const MixedPrecision& options)
    : options_(options) {
  if (options_.param_dtype) {
    for (const auto& each : parameters) {
      if (each.tensor.is_floating_point()) parameters_.push_back({each.tensor});
    }
  }
  if (!options_.buffer_dtype) return;
  const c10::NoGradGuard no_grad;
  for (const auto& each : buffers) {
    if (each.tensor.is_floating_point()) each.tensor.set_data(each.tensor.to(*options_.buffer_dtype));
  }
}

bool PrecisionSwitch::lower() {
  if (std::exchange(is_low_, true)) return false;
  const c10::NoGradGuard no_grad;
  for (auto& parameter : parameters_) {
    parameter.full = parameter.tensor.detach();
    auto& gradient = parameter.tensor.mutable_grad();
    if (gradient.defined()) gradient = gradient.to(*options_.param_dtype);
    parameter.tensor.set_data(parameter.full.to(*options_.param_dtype));
  }
  return true;
}

void PrecisionSwitch::raise() {
  if (!std::exchange(is_low_, false)) return;
  const c10::NoGradGuard no_grad;
  for (auto& parameter : parameters_) {
    parameter.tensor.set_data(parameter.full);
    auto& gradient = parameter.tensor.mutable_grad();
    const auto dtype =
        options_.keep_low_precision_grads ? *options_.param_dtype : parameter.full.scalar_type();
    if (gradient.defined()) gradient = gradient.to(dtype);
    parameter.full.reset();
  }
}

}  // namespace lockstep::ddp
