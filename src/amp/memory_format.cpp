// SPDX-License-Identifier: BSD-3-Clause
#include <c10/core/GradMode.h>

#include <lockstep/amp/autocast.h>
#include <lockstep/base/error.h>

namespace lockstep {
namespace {

bool takes(at::MemoryFormat format, const at::Tensor& tensor) {
  if (!tensor.defined()) return false;
  switch (format) {
    case at::MemoryFormat::ChannelsLast:
      return tensor.dim() == 4;
    case at::MemoryFormat::ChannelsLast3d:
      return tensor.dim() == 5;
    default:
      return tensor.dim() == 4 || tensor.dim() == 5;
  }
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

void to_memory_format(torch::nn::Module& module, at::MemoryFormat format) {
  if (format == at::MemoryFormat::Preserve) {
    throw ArgumentError(
        "to_memory_format: Preserve is not a layout; use ChannelsLast, ChannelsLast3d or Contiguous");
  }
  const c10::NoGradGuard no_grad;
  for (const auto& parameter : module.parameters()) lay_out(parameter, format);
  for (const auto& buffer : module.buffers()) lay_out(buffer, format);
}

}  // namespace lockstep
