// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <vector>

#include <lockstep/backends/registry.h>

#include "comm/issue_listener.h"
#include "comm/stream_backend.h"

namespace lockstep::backends {

// One backend for each kind of device in one group: a call goes to that of its tensors, a barrier to that of
// the CPU. Threads: as the parts.
class ByDeviceBackend : public c10d::Backend, public comm::IssueListener, public comm::StreamBackend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  // [i]: for the devices of its traits. The first is that of the CPU.
  explicit ByDeviceBackend(std::vector<BackendHandle> parts);

  // "cpu:shm,cuda:nccl"
  const std::string getBackendName() const override;
  void next_call(const comm::IssuedCall& call) override;
  bool ends_on_stream(const c10d::Work& work) const override;
  WorkPtr observer_of(const WorkPtr& work) const override;
  WorkPtr mark_stream() const override;
  void prepare_observing_thread() const override;
  void setTimeout(std::chrono::milliseconds timeout) override;
  void abort() override;
  void shutdown() override;
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;

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

  BackendTraits traits() const;

 private:
  const BackendHandle& part(const c10::Device& device) const;
  // The backend for the device, told which call comes next.
  c10d::Backend& next_on(const c10::Device& device);
  c10d::Backend& next_on(const at::Tensor& tensor) { return next_on(tensor.device()); }
  // The device's first; all of them, whatever one throws.
  void for_each_part(void (c10d::Backend::*action)());
  const comm::StreamBackend* streams_of(const c10d::Work& work) const;

  std::vector<BackendHandle> parts_;
  comm::IssuedCall next_;
};

// Of the parts that create_backend() made for these ranks.
BackendHandle join_by_device(std::vector<BackendHandle> parts);

}  // namespace lockstep::backends
