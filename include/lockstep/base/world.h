// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>

namespace lockstep {

/// Rank and world size of this process, for layers that do not depend on communication (samplers, logging).
struct World {
  int rank = 0;        ///< 0 .. size-1
  int size = 1;        ///< number of ranks
  int local_rank = 0;  ///< 0 .. local_size-1, counted on this host
  int local_size = 1;  ///< number of ranks on this host
};

/// The world of the default process group; without a context, a world of one rank. In a thread of
/// spawn_threads(), the world of the thread's rank. Safe from any thread.
World current_world();

/// Called by init() and by the destructor of its context.
void set_current_world(const World& world);

/// Called by a thread when it becomes a rank, and with nullopt when it stops being one.
void set_thread_world(const std::optional<World>& world);

/// Whether this process has ever had a world that was set, even if it has ended.
bool has_had_world();

/// Called by a process that becomes another one: has_had_world() is false again.
void forget_worlds();

/// Whether this thread is a rank of spawn_threads().
bool is_thread_rank();

}  // namespace lockstep
