// SPDX-License-Identifier: BSD-3-Clause
#pragma once

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

/// Whether this thread is a rank of spawn_threads().
bool is_thread_rank();

}  // namespace lockstep
