// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <vector>

#include <torch/optim/optimizer.h>

#include <lockstep/serialize/value.h>

namespace lockstep {

/// Multiplies the learning rate of every parameter group by `gamma` at each `step_size`-th call of step(). It
/// starts from the rate that the group has then, so that rates may be changed by hand or by another scheduler
/// in between. LibTorch's `torch::optim::StepLR` does so one call later; this one has Python's rates to the
/// bit, and its state dict. The optimizer must outlive it. PyTorch: `torch.optim.lr_scheduler.StepLR`.
class StepLR {
 public:
  /// Throws ArgumentError for a step_size below 1.
  StepLR(torch::optim::Optimizer& optimizer, std::int64_t step_size, double gamma = 0.1);

  /// After an epoch, or whatever step_size counts; after the optimizer's step().
  void step();
  /// Of each parameter group. PyTorch: `get_last_lr()`.
  const std::vector<double>& get_last_lr() const { return last_lr_; }

  Dict state_dict() const;
  /// Takes what the dict has, step_size and gamma too, as Python does; it must have `last_epoch`, and lists
  /// of as many rates as the optimizer has parameter groups. The rates themselves are in the optimizer's
  /// state dict. Throws CheckpointError naming what does not fit; the scheduler is then as it was.
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

}  // namespace lockstep
