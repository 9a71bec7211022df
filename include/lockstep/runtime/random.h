// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include <ATen/core/Generator.h>

namespace lockstep {

/// The default generator of this thread's random numbers on the CPU: in a rank of spawn_threads() the rank's
/// own, otherwise LibTorch's default generator.
at::Generator default_generator();

/// Seeds this rank's default generators, of the CPU and of its device. Unlike torch::manual_seed it does not
/// affect other ranks that are threads of this process. PyTorch: `torch.manual_seed`.
void manual_seed(std::uint64_t seed);

}  // namespace lockstep
