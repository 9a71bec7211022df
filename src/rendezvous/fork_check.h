// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <lockstep/base/env.h>

namespace lockstep::rendezvous {

// Lets go of what LibTorch keeps idle and can make anew, then throws ArgumentError, saying what is in the way
// and what to do, where a child forked off this process could not use LibTorch.
void prepare_to_fork(const Env& env);

// Whether CUDA's driver has been initialized, told by the descriptors in `folder`, /proc/self/fd: asking CUDA
// would initialize it.
bool has_cuda_open(const std::filesystem::path& folder);

}  // namespace lockstep::rendezvous
