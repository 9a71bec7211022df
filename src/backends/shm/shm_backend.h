// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <lockstep/backends/registry.h>

#include "backends/shm/connection.h"
#include "comm/direct_calls.h"
#include "comm/issue_listener.h"

namespace lockstep::backends {

// Collectives between processes of one host over memory that they share: a c10d::Backend around shm::Engine.
// Threads: any, as long as all ranks make the same calls in the same order.
class ShmBackend : public c10d::Backend, public comm::IssueListener, public comm::DirectCalls {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  ShmBackend(int rank, int size, std::shared_ptr<shm::Connection> connection,
             std::chrono::milliseconds timeout);

  // Leaves the group; tensors that it allocated stay valid.
  ~ShmBackend() override;
  ShmBackend(const ShmBackend&) = delete;
  ShmBackend& operator=(const ShmBackend&) = delete;

  const std::string getBackendName() const override { return "shm"; }
  void next_call(const comm::IssuedCall& call) override;
  void setTimeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }
  void abort() override;

  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
  // In memory that all ranks reach: all-reduce of such tensors moves no byte more than it must.
  // Uninitialized.
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;

  bool takes(const comm::DirectCall& call) const override;
  WorkPtr call_directly(const comm::DirectCall& call, const comm::IssuedCall& issued,
                        c10::function_ref<void()> posted) override;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_sizes,
                        std::vector<std::int64_t>& input_sizes,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int dst, int tag) override;
  WorkPtr recv(Tensors& tensors, int src, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

 private:
  WorkPtr issue(c10d::OpType op, shm::Request request, Tensors kept, std::chrono::milliseconds timeout);
  std::shared_ptr<shm::Transfer> start_send(const at::Tensor& tensor, int dst, int tag, std::uint64_t number);
  std::shared_ptr<shm::Transfer> start_receive(const at::Tensor& tensor, int src, int tag);
  WorkPtr send_directly(const comm::DirectCall& call, std::uint64_t number, c10::function_ref<void()> posted);
  WorkPtr receive_directly(const comm::DirectCall& call, c10::function_ref<void()> posted);
  WorkPtr work_of(c10d::OpType op, std::shared_ptr<shm::Transfer> transfer);
  WorkPtr receive(const at::Tensor& tensor, int src, int tag);
  std::chrono::milliseconds limit(std::chrono::milliseconds asked) const;

  std::shared_ptr<shm::Connection> connection_;
  std::chrono::milliseconds timeout_;
  std::uint64_t log_number_ = 0;
  std::uint64_t form_ = 0;  // of the next collective
};

BackendHandle create_shm(const BackendRequest& request);

}  // namespace lockstep::backends
