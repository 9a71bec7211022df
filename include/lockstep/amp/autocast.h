// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <optional>

#include <c10/core/MemoryFormat.h>
#include <c10/core/ScalarType.h>

#include <lockstep/device/device.h>
#include <lockstep/device/module_ref.h>

namespace lockstep::amp {

/// Options of Autocast under PyTorch's names, with PyTorch's defaults.
struct AutocastOptions {
  /// The dtype of operators that benefit from it. Default: bfloat16 on the CPU, float16 on CUDA.
  std::optional<at::ScalarType> dtype = std::nullopt;
  /// False disables autocast within an outer scope.
  bool enabled = true;
  /// Whether a weight that is used several times is cast only once. Default: as in the surrounding scope.
  std::optional<bool> cache_enabled = std::nullopt;
};

/// Runs LibTorch's operators in mixed precision during its lifetime: matrix products and convolutions in
/// `dtype`, sums and losses in float32. Use it for forward and the loss, not for backward, which uses the
/// dtypes of forward. PyTorch: `torch.autocast(device_type, dtype, enabled, cache_enabled)`.
///
///     at::Tensor loss;
///     {
///       lockstep::amp::Autocast autocast(context.device(), {.dtype = torch::kBFloat16});
///       loss = F::cross_entropy(ddp->forward(images), labels);
///     }
///     loss.backward();
///
/// Scopes nest; each restores the previous state, even after an exception. The outermost scope drops the
/// cache of cast weights when it ends, so end it before the optimizer changes them.
///
/// The state is per thread: destroy it in the thread that created it, and create one in each thread of
/// spawn_threads(). DataParallel's replicas use the state of the thread that calls forward.
///
/// Throws ArgumentError for a device type without autocast, and, if enabled, for a dtype that is not of floating
/// point. As in PyTorch, logs a warning and leaves autocast disabled in two cases: CUDA if this process has no
/// CUDA device, and dtypes other than bfloat16 and float16 on other device types.
class [[nodiscard]] Autocast {
 public:
  /// Uses the type of `device`; its index is ignored.
  explicit Autocast(DeviceId device, const AutocastOptions& options = {});
  /// PyTorch's arguments by position: `autocast("cuda", torch::kBFloat16)`.
  Autocast(DeviceId device, std::same_as<at::ScalarType> auto dtype, bool enabled = true,
           std::optional<bool> cache_enabled = std::nullopt)  // auto, so that `{}` is the options
      : Autocast(device, {.dtype = dtype, .enabled = enabled, .cache_enabled = cache_enabled}) {}
  explicit Autocast(std::same_as<bool> auto) = delete;  // write Autocast(device, {.enabled = enabled})
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

  /// Whether autocast is active: requested and supported.
  bool is_enabled() const { return enabled_; }
  /// The dtype in which operators compute.
  at::ScalarType dtype() const { return dtype_; }

 private:
  c10::DeviceType type_;
  at::ScalarType dtype_;
  bool enabled_;
  bool enabled_before_;
  at::ScalarType dtype_before_;
  bool cache_before_;
};

/// PyTorch's name of Autocast.
using autocast = Autocast;

}  // namespace lockstep::amp

namespace lockstep {

/// Converts parameters, buffers and existing gradients of a module to `format`: tensors of 4 dimensions for
/// ChannelsLast, of 5 for ChannelsLast3d, both for Contiguous. Convolutions are faster with ChannelsLast if
/// the images have it too: `images.contiguous(at::MemoryFormat::ChannelsLast)`. Tensor identities, values and
/// shapes stay, so optimizers may be created before or after. Create a DistributedDataParallel afterwards,
/// because its buckets take the existing layout. Throws ArgumentError for Preserve. PyTorch:
/// `module.to(memory_format=torch.channels_last)`.
void to_memory_format(ModuleRef module, at::MemoryFormat format);

}  // namespace lockstep
