// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include <ATen/core/Generator.h>

namespace lockstep {

/// The default CPU generator of this thread: in a rank of spawn_threads() the rank's own generator, otherwise
/// LibTorch's default generator.
at::Generator default_generator();

/// Seeds this rank's default generators: that of the CPU and that of its device. Unlike torch::manual_seed it
/// does not affect other ranks that are threads of this process. PyTorch: `torch.manual_seed`.
void manual_seed(std::uint64_t seed);

}  // namespace lockstep
