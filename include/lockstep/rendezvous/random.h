// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include <ATen/core/Generator.h>

namespace lockstep {

/// The generator from which this thread's random numbers on the CPU come when none is given: in a rank of
/// spawn_threads() its own, elsewhere LibTorch's default generator.
at::Generator default_generator();

/// Seeds all of this rank's default generators, of the CPU and of its device. In a process of its own that is
/// `torch::manual_seed`; among ranks that are threads it leaves the other ranks' numbers alone, as
/// torch::manual_seed would not. PyTorch: `torch.manual_seed`.
void manual_seed(std::uint64_t seed);

}  // namespace lockstep
