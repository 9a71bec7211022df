// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>

#include <lockstep/training/trainer.h>

// What a Trainer does between the last backward pass of a step and the step of the optimizer.
namespace lockstep::training {

// How a step has ended on a rank, or on all ranks.
struct StepEnd {
  double loss = 0;
  bool is_finite = true;  // the loss and the gradients
  bool stops = false;
  bool is_interrupted = false;  // by a signal
};

// The end on all ranks: the mean of their losses, NaN unless all are finite, and whether any of them stops or is
// interrupted. Collective.
StepEnd agree(const StepEnd& own, const std::optional<ProcessGroup>& group);

// clip_grad_norm_() of `ddp`, if it is not nullptr, of `sharded`, if there is one, or of the module.
double clip_gradients(torch::nn::Module& module, DistributedDataParallelModule* ddp,
                      const std::optional<FSDPModule>& sharded, double max_norm,
                      const ClipGradNormOptions& options);

}  // namespace lockstep::training
