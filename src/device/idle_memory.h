// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace lockstep {

// Gives the kernel back what this process keeps of freed CPU memory for later. Returns whether there may have
// been something. Safe from any thread.
bool free_idle_memory() noexcept;

}  // namespace lockstep
