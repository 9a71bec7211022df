// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "backends/mpi/group.h"
#include "comm/from_c10d.h"

namespace lockstep::backends {

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
