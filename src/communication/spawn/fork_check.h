// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <filesystem>

namespace lockstep::spawning {

// Ends LibTorch's idle worker threads, which it restarts on demand. Then throws ArgumentError, with the
// reason and a remedy, if a forked child could not use LibTorch.
void prepare_to_fork();

// Whether CUDA is initialized, according to the descriptors in `folder` (/proc/self/fd). A call of CUDA would
// initialize it.
bool has_cuda_open(const std::filesystem::path& folder);

}  // namespace lockstep::spawning
