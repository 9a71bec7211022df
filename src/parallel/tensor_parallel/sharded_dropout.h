// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>

#include <torch/nn/module.h>

#include <lockstep/comm/process_group.h>

namespace lockstep::tensor_parallel {

// The Dropout draws from a random stream of its rank's own, while the default streams stay equal on all
// ranks.
void draw_apart(const std::shared_ptr<torch::nn::Module>& dropout, const ProcessGroup& group);

}  // namespace lockstep::tensor_parallel
