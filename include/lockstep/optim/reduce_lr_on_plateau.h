// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <source_location>
#include <vector>

#include <torch/optim/optimizer.h>

#include <lockstep/base/literal.h>
#include <lockstep/optim/lr_scheduler.h>
#include <lockstep/serialize/value.h>

namespace lockstep::optim {

class Fields;

/// Which metrics are better: smaller or larger ones.
enum class PlateauMode : std::uint8_t {
  min,  ///< smaller metrics are better
  max,  ///< larger metrics are better
};
OneOf<"min", "max"> literals_of(PlateauMode);

/// Whether ReduceLROnPlateauOptions::threshold is a share of the best metric or a difference from it.
enum class ThresholdMode : std::uint8_t {
  rel,  ///< a share of the best metric
  abs,  ///< a difference from the best metric
};
OneOf<"rel", "abs"> literals_of(ThresholdMode);

/// Options of ReduceLROnPlateau, with PyTorch's names and defaults.
struct ReduceLROnPlateauOptions {
  Literal<PlateauMode> mode = "min";  ///< which metrics are better
  double factor = 0.1;                ///< rates are multiplied by it; below 1
  std::int64_t patience = 10;         ///< steps without an improvement that do not lower the rates
  double threshold = 1e-4;            ///< the least change that counts as an improvement
  Literal<ThresholdMode> threshold_mode = "rel";  ///< what threshold is measured in
  std::int64_t cooldown = 0;  ///< steps after a reduction in which bad metrics do not count
  PerGroup min_lr = 0;        ///< rates do not fall below it
  double eps = 1e-8;          ///< smaller changes of a rate are not made
};

/// Lowers the learning rates when a metric has stopped improving. Unlike
/// `torch::optim::ReduceLROnPlateauScheduler`, its state can be saved, and steps and state dict are Python's.
/// The optimizer must outlive it. PyTorch: `torch.optim.lr_scheduler.ReduceLROnPlateau`.
class ReduceLROnPlateau {
 public:
  /// Throws ArgumentError for an invalid factor or a list `min_lr` without one rate per parameter group.
  explicit ReduceLROnPlateau(torch::optim::Optimizer& optimizer, const ReduceLROnPlateauOptions& options = {},
                             std::source_location where = std::source_location::current());
  ReduceLROnPlateau(torch::optim::Optimizer& optimizer, Literal<PlateauMode> mode, double factor = 0.1,
                    std::int64_t patience = 10, std::source_location where = std::source_location::current())
      : ReduceLROnPlateau(optimizer, {.mode = mode, .factor = factor, .patience = patience}, where) {}

  /// Call it after each validation. Throws ArgumentError, as Python does, when a parameter group was added to
  /// the optimizer and min_lr was a list.
  void step(double metric, std::source_location where = std::source_location::current());
  /// The rate of each parameter group. PyTorch: `get_last_lr()`.
  const std::vector<double>& get_last_lr() const { return last_lr_; }
  /// Whether a smaller or a larger metric is better.
  PlateauMode mode() const { return mode_; }

  /// The state of the scheduler and its options, with Python's names.
  Dict state_dict() const;
  /// Loads the entries of the dict, options included, as Python does. Throws CheckpointError that names the
  /// entry that does not fit; the scheduler is then unchanged.
  void load_state_dict(const Dict& state_dict, std::source_location where = std::source_location::current());

 private:
  void visit_fields(Fields& fields);
  bool is_better(double metric) const;
  void reduce();

  torch::optim::Optimizer* optimizer_;
  PlateauMode mode_;
  double factor_;
  std::int64_t patience_;
  double threshold_;
  ThresholdMode threshold_mode_;
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

namespace lockstep::optim::lr_scheduler {
using optim::ReduceLROnPlateau;
}  // namespace lockstep::optim::lr_scheduler
