// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>
#include <string>

#include <lockstep/base/world.h>

#include "base/env.h"

namespace lockstep {

// What the environment says about this process.
struct LaunchedRank {
  int rank = 0;
  int world_size = 1;
  std::string variables{};  // "RANK=1 and WORLD_SIZE=2"
};

// The rank of this process in a job of several ranks, from the variables that init() reads: those of a
// launcher, SLURM or MPI. nullopt for one process, and for variables that init() would refuse.
std::optional<LaunchedRank> launched_rank(const Env& env = {});

// For everything that works on the default group or the current world unless the user names another one.
// Throws ArgumentError if this process is a rank of several and has not called init() yet: `what` would work
// as one process on all data. A process whose context has ended is one process again.
void require_init(const char* what);

// current_world(), after require_init(what).
World shared_world(const char* what);

// For what keeps the rank and size of a world: the present world if ranks of `made_in` have been lost since and the
// others continued, as in elastic::run(); else `made_in`. Only rank and size of `made_in` matter.
World world_since(const World& made_in);

// For what keeps the rank and size of shared_world(): throws ArgumentError if `what` was made before the
// init() of the present run. The end of a context is no reason to throw.
void require_same_world(const char* what, const World& made_in);

}  // namespace lockstep
