// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <lockstep/base/world.h>

#include "base/env.h"
#include "node/node_group.h"

namespace lockstep::rendezvous {

// Gives LibTorch's operators on this rank its share of the cores that the ranks of this host use together, as
// a launcher does, and logs it on rank 0. Does nothing if OMP_NUM_THREADS or MKL_NUM_THREADS is set, if
// at::set_num_threads() has set a number other than that of the cores, or if the share is not less.
// `node`: of all ranks, or nullptr if they are on several hosts.
void share_cores(const World& world, const node::NodeGroup* node, const Env& env);

}  // namespace lockstep::rendezvous
