// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>

namespace lockstep {

/// Where this process stands among the processes of one run, as plain numbers: what layers that know
/// nothing of communication (samplers, logging) need of the default process group.
struct World {
  int rank = 0;        ///< 0 .. size-1
  int size = 1;        ///< number of ranks
  int local_rank = 0;  ///< 0 .. local_size-1, counted on this host
  int local_size = 1;  ///< number of ranks on this host
};

/// The world of the default process group: what init() found, or a world of one outside its context. In a
/// thread of spawn_threads() that rank's. Safe from any thread.
World current_world();

/// Called by init() and by the end of its context.
void set_current_world(const World& world);

/// Called by a thread that becomes a rank by itself, and (nullopt) when it is none any more.
void set_thread_world(const std::optional<World>& world);

/// Whether this thread is a rank by itself.
bool is_thread_rank();

}  // namespace lockstep
