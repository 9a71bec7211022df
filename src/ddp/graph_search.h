// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <vector>

#include "ddp/gradient_hooks.h"

namespace lockstep::ddp {

// The parameters, ascending, whose gradients no backward from these outputs can reach.
std::vector<std::size_t> find_unreachable(const std::vector<at::Tensor>& outputs, const GradientHooks& hooks,
                                          std::size_t parameters);

}  // namespace lockstep::ddp
