// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <source_location>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>
#include <torch/optim/optimizer.h>

#include <lockstep/comm/process_group.h>
#include <lockstep/device/device.h>
#include <lockstep/optim/fused.h>
#include <lockstep/serialize/value.h>

namespace lockstep::amp {

/// Options of GradScaler under PyTorch's names, with PyTorch's defaults.
struct GradScalerOptions {
  double init_scale = 65536.0;          ///< the initial factor
  double growth_factor = 2.0;           ///< above 1
  double backoff_factor = 0.5;          ///< below 1
  std::int64_t growth_interval = 2000;  ///< steps without inf or NaN after which the factor grows
  bool enabled = true;                  ///< false: every function does nothing, except that step() steps

  /// The ranks that skip steps together although their gradients are not averaged: after no_sync(), for
  /// unshared parameters, for shards. An inf or NaN on one rank then skips the step on all ranks. unscale_(),
  /// or step() without it, is then collective, even on a rank without gradients. Not needed with
  /// DistributedDataParallel, where the averages spread the inf. No equivalent in PyTorch.
  std::optional<ProcessGroup> process_group = std::nullopt;
};

/// Prevents the underflow of float16 gradients: scales the loss by a factor and the gradients by its inverse,
/// skips steps whose gradients contain inf or NaN, and lowers the factor then. Bitwise equal to PyTorch:
/// `torch.amp.GradScaler`.
///
///     lockstep::amp::GradScaler scaler(context.device());
///     auto loss = F::cross_entropy(ddp->forward(images), labels);  // within Autocast
///     scaler.scale(loss).backward();
///     scaler.unscale_(optimizer);  // only to use gradients before the step, e.g. to clip them
///     scaler.step(optimizer);
///     scaler.update();
///
/// Not thread-safe. Can be a part of TrainingState.
class GradScaler {
 public:
  /// `device` gives the device type of the gradients. Throws ArgumentError for factors on the wrong side of 1
  /// and an interval below 1. As in PyTorch, logs a warning and is disabled for CUDA if this process has no
  /// CUDA device.
  explicit GradScaler(DeviceId device = c10::kCUDA, const GradScalerOptions& options = {},
                      std::source_location where = std::source_location::current());
  /// For CUDA: `GradScaler({.init_scale = 1024})`.
  explicit GradScaler(const GradScalerOptions& options,
                      std::source_location where = std::source_location::current())
      : GradScaler(c10::kCUDA, options, where) {}
  explicit GradScaler(std::same_as<bool> auto) = delete;  // write GradScaler({.enabled = enabled})

  /// Returns `outputs` times the factor, or `outputs` when disabled.
  at::Tensor scale(const at::Tensor& outputs);
  /// Scales each tensor; they may be on several devices.
  std::vector<at::Tensor> scale(const std::vector<at::Tensor>& outputs);

  /// Divides the gradients of the optimizer's parameters by the factor, in place, and checks them for inf and
  /// NaN. Call it at most once per optimizer between two update()s, before step(). Does not synchronize with
  /// the device. Throws ArgumentError when called out of order, and for float16 gradients: keep the
  /// parameters in float32.
  void unscale_(torch::optim::Optimizer& optimizer,
                std::source_location where = std::source_location::current());

  /// Calls unscale_() if needed, then the optimizer's step() unless a gradient has an inf or NaN. Returns
  /// whether the optimizer stepped; PyTorch returns the result of its step(). Call it once per optimizer
  /// between two update()s. Synchronizes with the device once. Throws ArgumentError when called out of order,
  /// and when no parameter has a gradient.
  ///
  /// An optim::FusedOptimizer needs no synchronization: its kernels unscale the gradients and skip the step.
  /// The result is then always true; a step was skipped if get_scale() is lower after update().
  bool step(torch::optim::Optimizer& optimizer, std::source_location where = std::source_location::current());
  /// Throws ArgumentError, as in PyTorch. When disabled, steps and returns the loss.
  at::Tensor step(torch::optim::Optimizer& optimizer, const torch::optim::Optimizer::LossClosure& closure,
                  std::source_location where = std::source_location::current());

  /// Ends the iteration: lowers the factor after a skipped step, raises it after growth_interval good ones.
  /// Does not synchronize with the device. Throws ArgumentError when no optimizer was unscaled since the last
  /// call.
  void update(std::source_location where = std::source_location::current());
  /// Sets the factor. A tensor must have one element and is copied.
  void update(double new_scale, std::source_location where = std::source_location::current());
  void update(const at::Tensor& new_scale, std::source_location where = std::source_location::current());

  /// The factor; 1 when disabled. Synchronizes with the device.
  double get_scale() const;
  /// The factor by which the scale grows.
  double get_growth_factor() const { return growth_factor_; }
  /// Sets the factor by which the scale grows.
  void set_growth_factor(double new_factor) { growth_factor_ = new_factor; }
  /// The factor by which the scale falls after an inf or NaN.
  double get_backoff_factor() const { return backoff_factor_; }
  /// Sets the factor by which the scale falls after an inf or NaN.
  void set_backoff_factor(double new_factor) { backoff_factor_ = new_factor; }
  /// Steps without inf or NaN after which the scale grows.
  std::int64_t get_growth_interval() const { return growth_interval_; }
  /// Sets the number of steps without inf or NaN after which the scale grows.
  void set_growth_interval(std::int64_t new_interval) { growth_interval_ = new_interval; }
  /// Whether losses are scaled; false makes all functions do nothing.
  bool is_enabled() const { return enabled_; }

  /// {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"} as in Python; empty
  /// when disabled. Call it after update().
  Dict state_dict() const;
  /// Loads a state dict of C++ or Python; does nothing when disabled. Throws CheckpointError when the dict is
  /// empty or an entry is missing or not a number; the scaler is then unchanged. Begins an iteration, as update()
  /// does.
  void load_state_dict(const Dict& state_dict, std::source_location where = std::source_location::current());

 private:
  enum class Stage : std::uint8_t { ready, unscaled, stepped };
  // One optimizer since the last update().
  struct OptimizerState {
    Stage stage = Stage::ready;
    std::vector<at::Tensor> found_infs;  // one per device: 1 if a gradient has an inf or NaN, else 0
  };

  void check_scaled(const char* function) const;
  void begin(c10::Device device);
  void look_for_infs(const torch::optim::Optimizer& optimizer, OptimizerState& state, bool unscale,
                     std::source_location where);
  void step_fused(optim::FusedOptimizer& optimizer, const OptimizerState& state) const;
  at::Tensor agreed(const std::vector<at::Tensor>& found_infs, std::source_location where) const;
  at::Tensor found_any() const;

  bool enabled_;
  c10::DeviceType device_;
  std::optional<ProcessGroup> group_;
  double init_scale_;
  double growth_factor_;
  double backoff_factor_;
  std::int64_t growth_interval_;
  std::int64_t init_growth_tracker_ = 0;
  at::Tensor scale_;  // undefined before the first scale(), which determines its device
  at::Tensor growth_tracker_;
  std::unordered_map<const torch::optim::Optimizer*, OptimizerState> states_;
};

}  // namespace lockstep::amp
