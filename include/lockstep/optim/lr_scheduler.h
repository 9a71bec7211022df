// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <torch/optim/optimizer.h>

#include <lockstep/serialize/value.h>

namespace lockstep::optim {

/// Multiplies the learning rate of every parameter group by `gamma` at every `step_size`-th call of step().
/// It scales the current rate, so rates may also be changed by hand or by another scheduler. Unlike
/// `torch::optim::StepLR`, which steps one call later, it has Python's rates to the bit and Python's state
/// dict. The optimizer must outlive it. PyTorch: `torch.optim.lr_scheduler.StepLR`.
class StepLR {
 public:
  /// Throws ArgumentError for a step_size below 1.
  StepLR(torch::optim::Optimizer& optimizer, std::int64_t step_size, double gamma = 0.1);

  /// Advances the schedule. Call it after the optimizer's step(), once per epoch or other unit of step_size.
  void step();
  /// The rate of each parameter group. PyTorch: `get_last_lr()`.
  const std::vector<double>& get_last_lr() const { return last_lr_; }

  Dict state_dict() const;
  /// Loads the entries of the dict, step_size and gamma included, as Python does. `last_epoch` is required,
  /// and lists of rates must match the number of parameter groups. The rates are in the optimizer's state
  /// dict. Throws CheckpointError that names the entry that does not fit; the scheduler is then unchanged.
  void load_state_dict(const Dict& state_dict);

 private:
  torch::optim::Optimizer* optimizer_;
  std::int64_t step_size_;
  double gamma_;
  std::vector<double> base_lrs_;
  std::int64_t last_epoch_ = 0;
  std::int64_t step_count_ = 1;  // Python's schedulers step once when they are made
  std::vector<double> last_lr_;
};

/// Options of ReduceLROnPlateau, with PyTorch's names and defaults.
struct ReduceLROnPlateauOptions {
  std::string mode = "min";  ///< or "max": a larger metric is better
  double factor = 0.1;       ///< rates are multiplied by it; below 1
  std::int64_t patience = 10;
  double threshold = 1e-4;
  std::string threshold_mode = "rel";  ///< or "abs"
  std::int64_t cooldown = 0;
  double min_lr = 0;
  /// One per parameter group, instead of min_lr.
  std::vector<double> min_lrs = {};
  double eps = 1e-8;
};

/// Lowers the learning rates when a metric has stopped improving. Unlike
/// `torch::optim::ReduceLROnPlateauScheduler`, its state can be saved, and steps and state dict are Python's.
/// The optimizer must outlive it. PyTorch: `torch.optim.lr_scheduler.ReduceLROnPlateau`.
class ReduceLROnPlateau {
 public:
  /// Throws ArgumentError for an invalid factor, mode or number of min_lrs.
  explicit ReduceLROnPlateau(torch::optim::Optimizer& optimizer, ReduceLROnPlateauOptions options = {});

  /// Call it after each validation. Throws ArgumentError, as Python does, when a parameter group was added to
  /// the optimizer and min_lrs was given.
  void step(double metric);
  /// The rate of each parameter group. PyTorch: `get_last_lr()`.
  const std::vector<double>& get_last_lr() const { return last_lr_; }

  Dict state_dict() const;
  /// Loads the entries of the dict, options included, as Python does. Throws CheckpointError that names the
  /// entry that does not fit; the scheduler is then unchanged.
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

}  // namespace lockstep::optim
