// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>

#include <lockstep/amp/autocast.h>
#include <lockstep/base/log.h>
#include <lockstep/device/device.h>

#include "base/throw_error.h"

namespace lockstep::amp {
namespace {

c10::DeviceType checked(c10::DeviceType type) {
  if (at::autocast::is_autocast_available(type)) return type;
  throw_error<ArgumentError>("Autocast: {} has no autocast", c10::DeviceTypeName(type, /*lower_case=*/true));
}

// Why the scope cannot be on, or "".
std::string obstacle(c10::DeviceType type, at::ScalarType dtype) {
  const auto device = c10::DeviceTypeName(type, /*lower_case=*/true);
  if (type == c10::DeviceType::CUDA) {
    if (device_count(type) > 0) return "";
    return "Autocast: CUDA is not available; it stays off";
  }
  if (dtype == at::kBFloat16 || dtype == at::kHalf) return "";
  return fmt::format("Autocast: {} computes in BFloat16 or Half, not in {}; it stays off", device,
                     c10::toString(dtype));
}

bool allowed(c10::DeviceType type, at::ScalarType dtype) {
  if (!at::isFloatingType(dtype))
    throw_error<ArgumentError>("Autocast: cannot compute in {}; give BFloat16 or Half", c10::toString(dtype));
  const auto text = obstacle(type, dtype);
  if (!text.empty()) log(LogLevel::warning, text);
  return text.empty();
}

}  // namespace

Autocast::Autocast(DeviceId device, const AutocastOptions& options)
    : type_(checked(c10::Device(device).type())),
      dtype_(options.dtype.value_or(at::autocast::get_autocast_dtype(type_))),
      enabled_(options.enabled && allowed(type_, dtype_)),
      enabled_before_(at::autocast::is_autocast_enabled(type_)),
      dtype_before_(at::autocast::get_autocast_dtype(type_)),
      cache_before_(at::autocast::is_autocast_cache_enabled()) {
  at::autocast::set_autocast_enabled(type_, enabled_);
  at::autocast::set_autocast_dtype(type_, dtype_);
  at::autocast::increment_nesting();
  at::autocast::set_autocast_cache_enabled(options.cache_enabled.value_or(cache_before_));
}

Autocast::~Autocast() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(type_, enabled_before_);
  at::autocast::set_autocast_dtype(type_, dtype_before_);
  at::autocast::set_autocast_cache_enabled(cache_before_);
}

}  // namespace lockstep::amp

namespace lockstep {
namespace {

bool takes(at::MemoryFormat format, const at::Tensor& tensor) {
  if (!tensor.defined()) return false;
  const auto dims = tensor.dim();
  return (dims == 4 && format != at::MemoryFormat::ChannelsLast3d) ||
         (dims == 5 && format != at::MemoryFormat::ChannelsLast);
}

void lay_out(at::Tensor tensor, at::MemoryFormat format) {
  if (!takes(format, tensor)) return;
  const auto values = tensor.detach();
  // to() rather than contiguous(), which leaves alone what is in both formats, such as weights of 1x1
  // convolutions, and with them strides by which operators choose their way.
  tensor.set_data(values.to(values.options(), /*non_blocking=*/false, /*copy=*/false, format));
  if (tensor.is_leaf() && tensor.grad().defined()) {
    auto& gradient = tensor.mutable_grad();
    gradient = gradient.to(gradient.options(), /*non_blocking=*/false, /*copy=*/false, format);
  }
}

}  // namespace

void to_memory_format(ModuleRef module, at::MemoryFormat format) {
  if (format == at::MemoryFormat::Preserve) {
    throw ArgumentError(
        "to_memory_format: Preserve is not a layout; use ChannelsLast, ChannelsLast3d or Contiguous");
  }
  const c10::NoGradGuard no_grad;
  for (const auto& parameter : module->parameters()) lay_out(parameter, format);
  for (const auto& buffer : module->buffers()) lay_out(buffer, format);
}

}  // namespace lockstep
