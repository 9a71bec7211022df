// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace lockstep::bench {

/// Binds this process to one of the cores that it may use: the `local_rank`-th, counted around.
/// Throws Error when the system refuses.
void bind_to_core(int local_rank);

}  // namespace lockstep::bench
