// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <torch/optim/optimizer.h>

#include <lockstep/serialize/value.h>

namespace lockstep {

/// PyTorch: the arguments of ReduceLROnPlateau.
struct ReduceLROnPlateauOptions {
  std::string mode = "min";  ///< or "max": the metric is the better the larger it is
  double factor = 0.1;       ///< below 1; what rates are multiplied by
  std::int64_t patience = 10;
  double threshold = 1e-4;
  std::string threshold_mode = "rel";  ///< or "abs"
  std::int64_t cooldown = 0;
  double min_lr = 0;
  /// One for each parameter group, instead of min_lr.
  std::vector<double> min_lrs = {};
  double eps = 1e-8;
};

/// Lowers the learning rates when a metric has not improved for a while. LibTorch has
/// `torch::optim::ReduceLROnPlateauScheduler`, which tells nobody its state; this one can be saved, steps as
/// Python's does, and its state dict is Python's. The optimizer must outlive it. PyTorch:
/// `torch.optim.lr_scheduler.ReduceLROnPlateau`.
class ReduceLROnPlateau {
 public:
  /// Throws ArgumentError for a factor, a mode or a number of min_lrs that makes no sense.
  explicit ReduceLROnPlateau(torch::optim::Optimizer& optimizer, ReduceLROnPlateauOptions options = {});

  /// After an epoch (a validation). Throws ArgumentError when the optimizer has got another parameter group
  /// and there are min_lrs, as Python does.
  void step(double metric);
  /// Of each parameter group. PyTorch: `get_last_lr()`.
  const std::vector<double>& get_last_lr() const { return last_lr_; }

  Dict state_dict() const;
  /// Takes what the dict has, options too, as Python does. Throws CheckpointError naming what does not fit;
  /// the scheduler is then as it was.
  void load_state_dict(const Dict& state_dict);

 private:
  bool is_better(double metric) const;
  void reduce();

  torch::optim::Optimizer* optimizer_;
  std::string mode_;
  double factor_;
  std::int64_t patience_;
  double threshold_;
  std::string threshold_mode_;
  std::int64_t cooldown_;
  std::optional<double> default_min_lr_;
  std::vector<double> min_lrs_;
  double eps_;
  double best_;
  std::int64_t last_epoch_ = 0;
  std::int64_t cooldown_counter_ = 0;
  std::int64_t num_bad_epochs_ = 0;
  std::vector<double> last_lr_;
};

}  // namespace lockstep
