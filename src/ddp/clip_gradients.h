// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/ddp/utils.h>

namespace lockstep::ddp {

// The gradients that exist, each once; of sparse ones, which it coalesces, the values.
std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters);

// Scales them in place and returns their norm before.
double clip_gradients(const std::vector<at::Tensor>& gradients, double max_norm,
                      const ClipGradNormOptions& options);

}  // namespace lockstep::ddp
