// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <source_location>

#include <lockstep/comm/process_group.h>

namespace lockstep {

/// Whether a context of init() exists. PyTorch: `torch.distributed.is_initialized`.
bool is_initialized();
/// The default group. Throws ArgumentError without a context of init().
ProcessGroup default_group();

int get_rank();        ///< of the default group; 0 without a context
int get_world_size();  ///< of the default group; 1 without a context
int get_local_rank();  ///< on this host; 0 without a context
bool is_main();        ///< get_rank() == 0
/// Shorthand for default_group().barrier(). PyTorch: `torch.distributed.barrier`.
void barrier(std::source_location where = std::source_location::current());

}  // namespace lockstep
