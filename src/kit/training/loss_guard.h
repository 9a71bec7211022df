// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include <lockstep/training/trainer.h>

namespace lockstep::training {

// What a Trainer trains.
struct Trained {
  torch::nn::Module& module;
  torch::optim::Optimizer& optimizer;
  FSDPModule* sharded;  // nullptr for another module
  const TrainingState& state;
  metrics::AverageMeter& reported_loss;
  std::optional<ProcessGroup> group;
};

// A state without the last losses. Checkpoints of fully_shard() have to have all parts of the state, so that one of a
// run without a guard could not be loaded.
Dict without_window(Dict state);

// Note [Bad steps]
//
//     begin_step()  before the first forward of a step: keeps what a forward changes (buffers, generators, the reported
//                   loss), with "rewind" each rewind_steps steps also a copy of the parts of the state
//     accepts()     before the optimizer's step: all ranks have the same numbers, so they decide alike, without a call
//
// A copy is made by begin_step(), so that it has what callbacks and the end of an epoch have done since the step
// before. Its loaders and the names in kStay stay as they are at a rewind, because data are not repeated.
//
// In an elastic run the copies are part of each commit: a replacement must rewind as the rank would have done that it
// replaces. Checkpoints have only the last losses, since no rewind goes back beyond a checkpoint.
class LossGuard {
 public:
  // nullptr if the options ask for none.
  static std::unique_ptr<LossGuard> make(const TrainerOptions& options, const Trained& trained);

  LossGuard(const TrainerOptions& options, const Trained& trained);

  // `begins`: no batch of the step has been trained; false after a resume between two steps.
  void begin_step(std::int64_t step, bool begins);
  // Whether begin_step() is due though batches of the step were trained.
  bool has_no_begin() const { return !before_; }
  // Whether to take the optimizer's step number `step`. False: the step is undone on all ranks. `mean`: of the losses
  // of all ranks, equal on all; NaN if a loss or a gradient is not finite on one. `own`: this rank's loss. `where`: the
  // program's line, for calls. Collective for a bad step. Throws NonFiniteError or Error on all ranks if bad steps are
  // errors, or are too many in a row.
  bool accepts(std::int64_t step, double mean, double own, std::source_location where);
  // No later rewind goes back beyond this moment.
  void limit_rewinds() { copies_.clear(); }
  // The step that was begun has failed, and the state was restored.
  void forget_step() { before_.reset(); }

  // For TrainingState.
  Dict state_dict(const std::optional<ProcessGroup>& group) const;
  void load_state_dict(const Dict& saved, const std::optional<ProcessGroup>& group);
  Dict own_state_dict() const;
  void load_own_state_dict(const Dict& saved);

 private:
  struct Before {
    std::map<std::string, at::Tensor> buffers;
    Dict others;
  };
  struct Copy {
    std::int64_t step;
    std::deque<double> losses;
    Dict parts;
  };

  bool is_spike(double mean) const;
  double median() const;
  std::string what_is_bad(std::int64_t step, double mean, double own) const;
  // Returns what is done, for the log.
  std::string undo(std::int64_t step);
  void undo_step();
  bool is_copy_due(std::int64_t step) const;
  const Copy& copy_for(std::int64_t step) const;

  TrainerOptions options_;
  Trained trained_;
  TrainingState changed_by_forward_;  // besides buffers
  std::deque<double> losses_;         // of the last good steps
  std::int64_t bad_steps_ = 0;        // in a row
  std::optional<Before> before_;
  std::deque<Copy> copies_;  // oldest first
};

}  // namespace lockstep::training
