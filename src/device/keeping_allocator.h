// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace lockstep {

// From now on LibTorch takes the memory of large tensors of the CPU from LargeBlocks. Does nothing where the
// allocator is not LibTorch's own.
void keep_large_tensors();

}  // namespace lockstep
