// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <functional>
#include <signal.h>
#include <vector>

#include <lockstep/rendezvous/spawn.h>

#include "rendezvous/spawn_board.h"

namespace lockstep::rendezvous {

// What the processes of one spawn() are made from.
struct SpawnPlan {
  const SpawnOptions& options;
  const std::function<void(int rank)>& body;
  const SpawnBoard& board;
  int master_port = 0;
  sigset_t signals{};  // blocked in the caller
};

// In a process just forked off `guard`, with every signal blocked: runs the body and ends. `foreign`: the
// descriptors that are not for ranks.
[[noreturn]] void be_spawned_rank(const SpawnPlan& plan, int rank, pid_t guard,
                                  const std::vector<int>& foreign);

}  // namespace lockstep::rendezvous
