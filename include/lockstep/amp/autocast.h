// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace lockstep::amp {

/// Options of Autocast under PyTorch's names, with PyTorch's defaults.
struct AutocastOptions {
  /// What the operators that gain by it compute in. Default: what the kind of device has, bfloat16 on the CPU
  /// and float16 on CUDA.
  std::optional<at::ScalarType> dtype = std::nullopt;
  /// False: an island of full precision within a scope.
  bool enabled = true;
  /// Whether a weight that is used several times is cast once. Default: as it is around the scope.
  std::optional<bool> cache_enabled = std::nullopt;
};

/// While it lives, LibTorch's operators choose the type they compute in by themselves: matrix products and
/// convolutions take `dtype`, sums and losses float32. For forward and the loss, not for backward, which uses
/// the types of forward by itself. PyTorch: `torch.autocast(device_type, dtype, enabled, cache_enabled)`.
///
///     at::Tensor loss;
///     {
///       lockstep::amp::Autocast autocast(context.device(), {.dtype = torch::kBFloat16});
///       loss = F::cross_entropy(ddp->forward(images), labels);
///     }
///     loss.backward();
///
/// Scopes nest; each puts back what it found, also when an exception ends it. At the end of the outermost one
/// the weights that were cast are forgotten: so end it before the optimizer changes them.
///
/// The state is the thread's: destroy it in the thread that made it, and make one in each thread of
/// spawn_threads(). DataParallel's replicas work in the state of the thread that calls forward.
///
/// Throws ArgumentError for a kind of device that has no autocast. As in PyTorch, a warning is logged and the
/// scope leaves autocast off where this process has no CUDA device, and for a dtype other than bfloat16 and
/// float16 anywhere but on CUDA.
class [[nodiscard]] Autocast {
 public:
  /// The kind of `device` counts, its index does not.
  explicit Autocast(c10::Device device, const AutocastOptions& options = {});
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

  /// Whether it is on: asked for, and not refused with a warning.
  bool is_enabled() const { return enabled_; }
  at::ScalarType dtype() const { return dtype_; }

 private:
  c10::DeviceType type_;
  at::ScalarType dtype_;
  bool enabled_;
  bool enabled_before_;
  at::ScalarType dtype_before_;
  bool cache_before_;
};

}  // namespace lockstep::amp
