// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/mpi/engine.h"
#include "comm/from_c10d.h"
#include "node/node_group.h"

namespace lockstep::backends {

// What the calls of one group share.
struct MpiGroup {
  mpi::Engine& engine;
  std::unique_ptr<mpi::Communicator> ranks;
  std::shared_ptr<node::NodeGroup> node;  // nullptr: the ranks run on several hosts
  bool can_end_calls = false;             // blocking calls do not use MPI's blocking functions

  std::string name_of(int rank) const;
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
  [[noreturn]] void fail(const std::string& reason) const;
  std::vector<int> await_lost_ranks() const;
};

// Collectives and messages over MPI. Threads: any, as long as all ranks make the same calls in the same
// order.
class MpiBackend final : public comm::FromC10d {
 public:
  MpiBackend(int rank, int size, std::shared_ptr<MpiGroup> group, std::chrono::milliseconds timeout);

  // Frees the communicator, unless an exception ends the group, calls are unfinished, or a call has failed.
  // In the first two cases the other ranks' calls end with PeerLost, if MPI survives lost ranks.
  ~MpiBackend() override;

  const std::string getBackendName() const override { return "mpi"; }
  void abort() override;

  comm::OperationPtr start(const comm::Call& call, comm::Report report) override;
  void break_off() noexcept override { group_->revoke(); }

  static BackendTraits traits();

 private:
  void check_tag(const comm::Call& call) const;
  void run(const comm::Call& call);
  comm::OperationPtr begin(const comm::Call& call);

  std::shared_ptr<MpiGroup> group_;
  std::uint32_t monitored_barriers_ = 0;  // that this rank has called
  std::mutex mutex_;
  std::list<std::weak_ptr<mpi::Task>> under_way_;
};

}  // namespace lockstep::backends
