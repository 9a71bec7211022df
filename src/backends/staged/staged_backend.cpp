// SPDX-License-Identifier: BSD-3-Clause
#include "backends/staged/staged_backend.h"

#include <ATen/ops/empty_like.h>
#include <fmt/format.h>

namespace lockstep::backends {
namespace {

using Tensors = StagedBackend::Tensors;
using WorkPtr = StagedBackend::WorkPtr;

// A call of the backend for the CPU, and what its end has to be copied to.
class StagedWork : public c10d::Work {
 public:
  StagedWork(WorkPtr work, Tensors device, Tensors host)
      : work_(std::move(work)), device_(std::move(device)), host_(std::move(host)) {}

  bool isCompleted() override { return work_->isCompleted(); }
  bool isSuccess() const override { return work_->isSuccess(); }
  int sourceRank() const override { return work_->sourceRank(); }
  void abort() override { work_->abort(); }
  bool wait(std::chrono::milliseconds timeout) override {
    if (!work_->wait(timeout)) return false;
    for (std::size_t i = 0; i < device_.size(); ++i) device_[i].copy_(host_[i]);
    device_.clear();
    host_.clear();
    return true;
  }

 private:
  WorkPtr work_;
  Tensors device_;
  Tensors host_;
};

at::Tensor copy_of(const at::Tensor& tensor) {
  return tensor.device().is_cpu() ? tensor.clone() : tensor.to(at::kCPU);
}

at::Tensor room_for(const at::Tensor& tensor) {
  return at::empty_like(tensor, tensor.options().device(at::kCPU));
}

Tensors copies_of(const Tensors& tensors) {
  Tensors copies;
  for (const auto& tensor : tensors) copies.push_back(copy_of(tensor));
  return copies;
}

Tensors rooms_for(const Tensors& tensors) {
  Tensors rooms;
  for (const auto& tensor : tensors) rooms.push_back(room_for(tensor));
  return rooms;
}

WorkPtr staged(WorkPtr work, Tensors device, Tensors host) {
  return c10::make_intrusive<StagedWork>(std::move(work), std::move(device), std::move(host));
}

}  // namespace

void StagedBackend::next_call(const comm::IssuedCall& call) {
  if (auto* listener = dynamic_cast<comm::IssueListener*>(host_.get())) listener->next_call(call);
}

WorkPtr StagedBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  auto host = getRank() == options.rootRank ? copies_of(tensors) : rooms_for(tensors);
  auto work = host_->broadcast(host, options);
  return staged(std::move(work), tensors, std::move(host));
}

WorkPtr StagedBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  auto host = copies_of(tensors);
  auto work = host_->allreduce(host, options);
  return staged(std::move(work), tensors, std::move(host));
}

WorkPtr StagedBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  auto host = copies_of(tensors);
  auto work = host_->reduce(host, options);
  return staged(std::move(work), tensors, std::move(host));
}

WorkPtr StagedBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                 const c10d::AllgatherOptions& options) {
  std::vector<Tensors> host{rooms_for(outputs.front())};
  auto from = copies_of(inputs);
  auto work = host_->allgather(host, from, options);
  return staged(std::move(work), outputs.front(), std::move(host.front()));
}

WorkPtr StagedBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                       const c10d::AllgatherOptions& options) {
  auto host = room_for(output);
  auto from = copy_of(input);
  auto work = host_->_allgather_base(host, from, options);
  return staged(std::move(work), {output}, {host});
}

WorkPtr StagedBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::GatherOptions& options) {
  std::vector<Tensors> host;
  if (!outputs.empty()) host.push_back(rooms_for(outputs.front()));
  auto from = copies_of(inputs);
  auto work = host_->gather(host, from, options);
  if (outputs.empty()) return staged(std::move(work), {}, {});
  return staged(std::move(work), outputs.front(), std::move(host.front()));
}

WorkPtr StagedBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                               const c10d::ScatterOptions& options) {
  auto host = rooms_for(outputs);
  std::vector<Tensors> from;
  if (!inputs.empty()) from.push_back(copies_of(inputs.front()));
  auto work = host_->scatter(host, from, options);
  return staged(std::move(work), outputs, std::move(host));
}

WorkPtr StagedBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                      const c10d::ReduceScatterOptions& options) {
  auto host = rooms_for(outputs);
  std::vector<Tensors> from{copies_of(inputs.front())};
  auto work = host_->reduce_scatter(host, from, options);
  return staged(std::move(work), outputs, std::move(host));
}

WorkPtr StagedBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                            const c10d::ReduceScatterOptions& options) {
  auto host = room_for(output);
  auto from = copy_of(input);
  auto work = host_->_reduce_scatter_base(host, from, options);
  return staged(std::move(work), {output}, {host});
}

WorkPtr StagedBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  auto host = rooms_for(outputs);
  auto from = copies_of(inputs);
  auto work = host_->alltoall(host, from, options);
  return staged(std::move(work), outputs, std::move(host));
}

WorkPtr StagedBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                     std::vector<std::int64_t>& output_sizes,
                                     std::vector<std::int64_t>& input_sizes,
                                     const c10d::AllToAllOptions& options) {
  auto host = room_for(output);
  auto from = copy_of(input);
  auto work = host_->alltoall_base(host, from, output_sizes, input_sizes, options);
  return staged(std::move(work), {output}, {host});
}

WorkPtr StagedBackend::send(Tensors& tensors, int dst, int tag) {
  auto host = copies_of(tensors);
  auto work = host_->send(host, dst, tag);
  return staged(std::move(work), {}, std::move(host));
}

WorkPtr StagedBackend::recv(Tensors& tensors, int src, int tag) {
  auto host = rooms_for(tensors);
  auto work = host_->recv(host, src, tag);
  return staged(std::move(work), tensors, std::move(host));
}

WorkPtr StagedBackend::recvAnysource(Tensors& tensors, int tag) {
  auto host = rooms_for(tensors);
  auto work = host_->recvAnysource(host, tag);
  return staged(std::move(work), tensors, std::move(host));
}

BackendHandle stage_through(const BackendHandle& host, c10::DeviceType device) {
  auto traits = host.traits;
  traits.devices = {device};
  return {.backend = c10::make_intrusive<StagedBackend>(host.backend),
          .traits = std::move(traits),
          .host_group = host.host_group};
}

}  // namespace lockstep::backends
