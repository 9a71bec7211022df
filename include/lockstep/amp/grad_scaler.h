// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/optim/optimizer.h>

#include <lockstep/comm/process_group.h>
#include <lockstep/optim/fused_optimizer.h>
#include <lockstep/serialize/value.h>

namespace lockstep::amp {

/// Options of GradScaler under PyTorch's names, with PyTorch's defaults.
struct GradScalerOptions {
  double init_scale = 65536.0;          ///< the first factor
  double growth_factor = 2.0;           ///< above 1
  double backoff_factor = 0.5;          ///< below 1
  std::int64_t growth_interval = 2000;  ///< steps without inf or NaN after which the factor grows
  bool enabled = true;                  ///< false: scale() and the rest do nothing, step() steps

  /// Ranks whose gradients are not averages of all: after no_sync(), of parameters that each rank has for
  /// itself, of shards. An inf or NaN on one of them skips the step on all. unscale_(), or step() where that
  /// was not called, is then a collective call, also on a rank without any gradient. Not needed with
  /// DistributedDataParallel, whose averages bring the inf to all ranks by themselves. Own.
  std::optional<ProcessGroup> group = std::nullopt;
};

/// Keeps the gradients of float16 computations from vanishing: multiplies the loss by a factor, divides the
/// gradients by it, leaves out steps whose gradients have an inf or NaN and lowers the factor then. PyTorch:
/// `torch.amp.GradScaler`, with the same arithmetic and hence the same bits.
///
///     lockstep::amp::GradScaler scaler(context.device());
///     ...
///     scaler.scale(loss).backward();
///     scaler.unscale_(optimizer);  // only where gradients are looked at, e.g. clipped, before the step
///     scaler.step(optimizer);
///     scaler.update();
///
/// Not for several threads at once. A TrainingState takes it as a part.
class GradScaler {
 public:
  /// `device`: the kind of device that gradients are on. Throws ArgumentError for factors on the wrong side
  /// of 1 and an interval below 1. As in PyTorch, logs a warning and is not enabled when that is CUDA and
  /// this process has no CUDA device.
  explicit GradScaler(c10::Device device = c10::kCUDA, const GradScalerOptions& options = {});

  /// `outputs` times the factor; itself when not enabled.
  at::Tensor scale(const at::Tensor& outputs);
  /// The same for each; they may be on several devices.
  std::vector<at::Tensor> scale(const std::vector<at::Tensor>& outputs);

  /// Divides the gradients of the optimizer's parameters by the factor, in place, and looks for inf and NaN.
  /// Once for each optimizer between two update()s, before step(). Does not wait for the device. Throws
  /// ArgumentError when called out of turn, and for float16 gradients: keep the parameters in float32.
  void unscale_(torch::optim::Optimizer& optimizer);

  /// unscale_() unless that was done, then the optimizer's step(), or nothing at all when a gradient has an
  /// inf or NaN. Returns whether the optimizer stepped, where PyTorch returns what its step() does. Once for
  /// each optimizer between two update()s. Waits for the device once. Throws ArgumentError when called out of
  /// turn and when no parameter has a gradient.
  ///
  /// With an optim::FusedOptimizer nobody waits: the factor and what was found go to its kernels, which
  /// divide and leave out by themselves. The result is true then, whatever they do: a step was left out
  /// where get_scale() is lower after update() than before.
  bool step(torch::optim::Optimizer& optimizer);
  /// Throws ArgumentError, as in PyTorch, unless the scaler is not enabled: then the loss.
  at::Tensor step(torch::optim::Optimizer& optimizer, const torch::optim::Optimizer::LossClosure& closure);

  /// Ends the iteration: lowers the factor when a step was left out, raises it after growth_interval good
  /// ones. Does not wait for the device. Throws ArgumentError when no optimizer was unscaled since the last
  /// one.
  void update();
  /// The factor becomes `new_scale`; a tensor has one element and is copied.
  void update(double new_scale);
  void update(const at::Tensor& new_scale);

  /// 1 when not enabled. Waits for the device.
  double get_scale() const;
  double get_growth_factor() const { return growth_factor_; }
  void set_growth_factor(double new_factor) { growth_factor_ = new_factor; }
  double get_backoff_factor() const { return backoff_factor_; }
  void set_backoff_factor(double new_factor) { backoff_factor_ = new_factor; }
  std::int64_t get_growth_interval() const { return growth_interval_; }
  void set_growth_interval(std::int64_t new_interval) { growth_interval_ = new_interval; }
  bool is_enabled() const { return enabled_; }

  /// {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"} as in Python; empty
  /// when not enabled. Call it after update().
  Dict state_dict() const;
  /// Takes over what state_dict() gave here or in Python; does nothing when not enabled. Throws
  /// CheckpointError when an entry is missing or no number, or when the dict is empty, the scaler being as
  /// before.
  void load_state_dict(const Dict& state_dict);

 private:
  enum class Stage : std::uint8_t { ready, unscaled, stepped };
  // Of one optimizer since the last update().
  struct OptimizerState {
    Stage stage = Stage::ready;
    std::vector<at::Tensor> found_infs;  // one a device: 1 where a gradient has an inf or NaN, else 0
  };

  void check_scaled(const char* function) const;
  void begin(c10::Device device);
  void look_for_infs(const torch::optim::Optimizer& optimizer, OptimizerState& state, bool unscale);
  void step_fused(optim::FusedOptimizer& optimizer, const OptimizerState& state) const;
  at::Tensor agreed(const std::vector<at::Tensor>& found_infs) const;
  at::Tensor found_any() const;

  bool enabled_;
  c10::DeviceType device_;
  std::optional<ProcessGroup> group_;
  double init_scale_;
  double growth_factor_;
  double backoff_factor_;
  std::int64_t growth_interval_;
  std::int64_t init_growth_tracker_ = 0;
  at::Tensor scale_;  // undefined before the first scale(), which says on which device it is needed
  at::Tensor growth_tracker_;
  std::unordered_map<const torch::optim::Optimizer*, OptimizerState> states_;
};

}  // namespace lockstep::amp
