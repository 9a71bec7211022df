// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <source_location>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/comm/process_group.h>
#include <lockstep/nn/wrapped_module.h>

namespace lockstep::modules {

// A parameter's gradient, as clip_grad_norm_() takes it.
struct CountedGradient {
  at::Tensor part;                               // this rank's; undefined: it has none
  std::vector<ProcessGroup> cuts = {};           // from the outermost on: each rank has another part
  std::optional<ProcessGroup> other_ranks = {};  // each rank has another gradient, e.g. of its own experts
  bool counts = true;                            // false: another rank counts it; it is scaled only
};

// Scales the gradients so that their norm is at most `max_norm`, and returns the norm before: the one
// implementation of every clip_grad_norm_(). See ClipGradNormOptions. Without groups it has PyTorch's bits
// for float32 and float64; with groups it is collective, and all ranks get the same bits. `others`: ranks
// with other gradients, as the stages of a pipeline have; nullptr: none.
double clip_gradients(const std::vector<CountedGradient>& gradients, double max_norm,
                      const ClipGradNormOptions& options, const ProcessGroup* others = nullptr,
                      std::source_location where = std::source_location::current());

}  // namespace lockstep::modules
