// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "backends/shm/connection.h"
#include "comm/from_c10d.h"
#include "comm/mapped_memory.h"
#include "comm/profiler_event.h"

namespace lockstep::backends {

// Collectives and messages between the processes, or thread ranks, of one host over memory that they share.
// Threads: any, as long as all ranks make the same calls in the same order.
class ShmBackend : public comm::FromC10d, public comm::MappedMemory {
 public:
  ShmBackend(int rank, int size, std::shared_ptr<shm::Connection> connection,
             std::chrono::milliseconds timeout);

  // Leaves the group; tensors that it allocated stay valid.
  ~ShmBackend() override;

  const std::string getBackendName() const override { return "shm"; }
  void abort() override;
  void leave() override;

  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
  // Uninitialized registered memory, which every rank maps: an all-reduce of such tensors is zero-copy.
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;

  std::int64_t allocate_mapped(std::size_t bytes) override;
  at::Tensor map(int owner, std::int64_t place, std::size_t bytes) override;

  comm::OperationPtr start(const comm::Call& call, comm::Report report) override;

  static BackendTraits traits();

 private:
  comm::OperationPtr start_collective(const comm::Call& call, comm::Report report);
  comm::OperationPtr start_send(const comm::Call& call, comm::Report report);
  comm::OperationPtr start_receive(const comm::Call& call, comm::Report report);
  template <class Task, class... Arguments>
  auto make_operation(const comm::Call& call, comm::ProfilerEvent event, Arguments&&... arguments) const;
  template <class Transfer, class... Memory>
  auto start_transfer(const comm::Call& call, comm::ProfilerEvent event, Memory... memory);

  std::shared_ptr<shm::Connection> connection_;
};

}  // namespace lockstep::backends
