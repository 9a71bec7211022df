// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <torch/library.h>

namespace lockstep::simulated {

// Those that are no operator of the CPU on the device's memory: copies, sparse gradients, flash attention, the choice of
// attention.
void add_special_kernels();

}  // namespace lockstep::simulated
