// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <thread>

#include <lockstep/comm/process_group.h>

#include "base/deadline.h"
#include "comm/group_state.h"
#include "node/node_group.h"

namespace lockstep::testing {

/// Waits until a call of every rank but `lost` has failed, so that the end of this rank ends no wait of another one.
inline void await_failures(const ProcessGroup& group, int lost = -1) {
  const auto ranks = comm::state_of(group).node_group();
  const Deadline deadline(std::chrono::seconds(20));
  for (int rank = 0; rank < ranks->size(); ++rank)
    while (rank != lost && ranks->status(rank).failed.load() == 0 && !deadline.expired())
      std::this_thread::yield();
}

}  // namespace lockstep::testing
