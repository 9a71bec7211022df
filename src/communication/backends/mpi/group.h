// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backends/mpi/engine.h"
#include "node/node_group.h"

namespace lockstep::backends {

// What the calls of one group share.
struct MpiGroup {
  mpi::Engine& engine;
  std::unique_ptr<mpi::Communicator> ranks;
  std::shared_ptr<node::NodeGroup> node;  // nullptr: the ranks run on several hosts
  bool can_end_calls = false;             // blocking calls do not use MPI's blocking functions

  std::string name_of(int rank) const;
  std::string names_of(const std::vector<int>& some) const;  // "rank 1 (...) and rank 2 (...)"
  ErrorDetails details_of(const std::vector<int>& some) const;
  // Waits for a started call. Throws PeerLost or DesyncError if a rank of this host has died or refuses the
  // step, or if SIGTERM has come.
  void wait(mpi::Task& task, std::chrono::milliseconds timeout) const;
  // Calls `job`. If it fails because of a lost rank, ends the calls of the other ranks too, and throws
  // PeerLost with the names of the lost ranks.
  void guard(const std::function<void()>& job) const;
  // All calls of all ranks end with PeerLost, if MPI survives lost ranks.
  void revoke() const noexcept;

 private:
  bool has_lost_ranks() const;
  [[noreturn]] void fail(const Error& reason) const;
  std::vector<int> await_lost_ranks() const;
};

// A barrier in which rank 0 names the missing ranks after `limit`. `number`: of the group's barriers of this
// kind. Throws TimeoutError on all ranks that came.
void monitored_barrier(MpiGroup& group, int rank, int size, std::uint32_t number,
                       std::chrono::milliseconds limit);

}  // namespace lockstep::backends
