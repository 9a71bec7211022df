// SPDX-License-Identifier: BSD-3-Clause
#include "training/step_end.h"

#include <limits>

#include "metrics/sum_over_ranks.h"

namespace lockstep::training {

StepEnd agree(const StepEnd& own, const std::optional<ProcessGroup>& group) {
  const auto count = [](bool holds) { return holds ? 1.0 : 0.0; };
  const auto sums = metrics::sum_over_ranks(
      {count(!own.is_finite), count(own.stops), count(own.is_interrupted), own.is_finite ? own.loss : 0},
      group);
  const bool is_finite = sums[0] == 0;
  const double ranks = group ? group->size() : 1;
  return {.loss = is_finite ? sums[3] / ranks : std::numeric_limits<double>::quiet_NaN(),
          .is_finite = is_finite,
          .stops = sums[1] > 0,
          .is_interrupted = sums[2] > 0};
}

double clip_gradients(torch::nn::Module& module, DistributedDataParallelModule* ddp,
                      const std::optional<FSDPModule>& sharded, double max_norm,
                      const ClipGradNormOptions& options) {
  if (sharded) return clip_grad_norm_(*sharded, max_norm, options);
  if (ddp != nullptr) return clip_grad_norm_(*ddp, max_norm, options);
  return clip_grad_norm_(module, max_norm, options);
}

}  // namespace lockstep::training
