// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <lockstep/base/error.h>

namespace lockstep {

/// A loss, a gradient or a parameter is infinite or NaN. All ranks throw it in the same step.
class NonFiniteError : public Error {
 public:
  using Error::Error;
};

/// Options of every clip_grad_norm_() under PyTorch's names: for DistributedDataParallel, fully_shard(),
/// parallelize_module(), pipelines and modules of one process.
///
/// The total norm is PyTorch's: the norm of a vector that holds each gradient's norm. A NaN in a gradient
/// gives NaN on all ranks (with norm_type 0 it counts as an element that is not zero).
///
/// | norm_type | norm |
/// |---|---|
/// | finite, not 0 | (sum of |x|^norm_type)^(1 / norm_type) of all elements |
/// | infinity, -infinity | the largest, the smallest |x| |
/// | 0 | the number of gradients that have an element other than 0 |
///
/// Gradients may be complex (|x| is the modulus), sparse (elements that are not stored are 0) and of several
/// dtypes. Gradients without elements, e.g. a rank's empty shard, do not count. The norm is 0 without
/// gradients. Norms of half-precision gradients are computed in float32, those over several ranks in float64.
/// Throws ArgumentError, before anything is sent, if norm_type is NaN, or if max_norm is negative or NaN.
/// Throws DesyncError if ranks that have parts of one gradient, or other gradients, pass different options.
struct ClipGradNormOptions {
  double norm_type = 2;
  /// Throws NonFiniteError when the norm is infinite or NaN, before it scales the gradients.
  bool error_if_nonfinite = false;
};

}  // namespace lockstep
