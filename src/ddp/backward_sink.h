// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::ddp {

// Puts one node of the graph behind those of the tensors that have a history: copies take their place that
// autograd follows back to all of them as soon as one of them is part of a loss, so that every parameter
// behind them is heard of, with an undefined gradient where the loss does not depend on it. `on_backward` is
// called when backward comes by. PyTorch: `_DDPSink`.
void pass_through_sink(std::vector<at::Tensor>& tensors, std::function<void()> on_backward);

}  // namespace lockstep::ddp
