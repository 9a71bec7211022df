// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <lockstep/ddp/distributed_data_parallel.h>

namespace lockstep {

/// Options of clip_grad_norm_ under PyTorch's names.
struct ClipGradNormOptions {
  double norm_type = 2;             ///< infinity is allowed
  bool error_if_nonfinite = false;  ///< throws Error when the norm is infinite or NaN
};

/// Scales all gradients down so that together they have at most this norm, and returns the norm that they
/// had. To be called after the backward that reduces, hence once for several accumulated ones: as the
/// gradients are equal on all ranks, so are the norm and the result, without communication. Norms of
/// half-precision gradients are taken in float. Throws Error when gradients are not averaged (the last
/// backward was in no_sync()), and with optimizer_in_backward, which leaves no gradients. PyTorch:
/// `torch.nn.utils.clip_grad_norm_`.
double clip_grad_norm_(const DistributedDataParallelModule& ddp, double max_norm,
                       const ClipGradNormOptions& options = {});

/// Cuts each element of the gradients to [-clip_value, clip_value], under the same rules. PyTorch:
/// `torch.nn.utils.clip_grad_value_`.
void clip_grad_value_(const DistributedDataParallelModule& ddp, double clip_value);

template <typename Module>
double clip_grad_norm_(const DistributedDataParallel<Module>& ddp, double max_norm,
                       const ClipGradNormOptions& options = {}) {
  return clip_grad_norm_(*ddp, max_norm, options);
}

template <typename Module>
void clip_grad_value_(const DistributedDataParallel<Module>& ddp, double clip_value) {
  clip_grad_value_(*ddp, clip_value);
}

}  // namespace lockstep
