// SPDX-License-Identifier: BSD-3-Clause
#include <utility>

#include <lockstep/backends/backends.h>

namespace lockstep::backends {
namespace {

class FakeWork : public c10d::Work {
 public:
  FakeWork(int rank, c10d::OpType op, std::exception_ptr failure) : Work(rank, op) {
    finish(std::move(failure));
  }
  int sourceRank() const override { return 0; }
};

at::Tensor first(const std::vector<at::Tensor>& tensors) {
  return tensors.empty() ? at::Tensor() : tensors.front();
}

void copy_to_all(const std::vector<at::Tensor>& outputs, const at::Tensor& input) {
  for (const auto& output : outputs) output.copy_(input);
}

}  // namespace

std::vector<FakeBackend::Call> FakeBackend::calls() const {
  const MutexLock lock(mutex_);
  return calls_;
}

void FakeBackend::clear_calls() {
  const MutexLock lock(mutex_);
  calls_.clear();
}

void FakeBackend::fail_next_call(std::exception_ptr failure) {
  const MutexLock lock(mutex_);
  next_failure_ = std::move(failure);
}

BackendTraits FakeBackend::traits() {
  return {.devices = {}, .dtypes = {}, .averages = true, .device_advice = {}};  // empty: all are allowed
}

FakeBackend::WorkPtr FakeBackend::record(c10d::OpType op, const at::Tensor& tensor) {
  const MutexLock lock(mutex_);
  calls_.push_back({op, tensor.defined() ? tensor.numel() : 0, tensor});
  return c10::make_intrusive<FakeWork>(getRank(), op, std::exchange(next_failure_, nullptr));
}

FakeBackend::WorkPtr FakeBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions&) {
  return record(c10d::OpType::BROADCAST, first(tensors));
}

FakeBackend::WorkPtr FakeBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions&) {
  return record(c10d::OpType::ALLREDUCE, first(tensors));
}

FakeBackend::WorkPtr FakeBackend::reduce(Tensors& tensors, const c10d::ReduceOptions&) {
  return record(c10d::OpType::REDUCE, first(tensors));
}

FakeBackend::WorkPtr FakeBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                            const c10d::AllgatherOptions&) {
  copy_to_all(outputs.front(), inputs.front());
  return record(c10d::OpType::ALLGATHER, first(inputs));
}

FakeBackend::WorkPtr FakeBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                  const c10d::AllgatherOptions&) {
  output.view({getSize(), -1}).copy_(input.clone().view({1, -1}));  // the input may be a part of the output
  return record(c10d::OpType::_ALLGATHER_BASE, input);
}

FakeBackend::WorkPtr FakeBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                         const c10d::GatherOptions&) {
  if (!outputs.empty()) copy_to_all(outputs.front(), inputs.front());
  return record(c10d::OpType::GATHER, first(inputs));
}

FakeBackend::WorkPtr FakeBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                          const c10d::ScatterOptions&) {
  if (!inputs.empty()) outputs.front().copy_(inputs.front()[static_cast<std::size_t>(getRank())]);
  return record(c10d::OpType::SCATTER, first(outputs));
}

FakeBackend::WorkPtr FakeBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                 const c10d::ReduceScatterOptions&) {
  outputs.front().copy_(inputs.front()[static_cast<std::size_t>(getRank())]);
  return record(c10d::OpType::REDUCE_SCATTER, first(outputs));
}

FakeBackend::WorkPtr FakeBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                       const c10d::ReduceScatterOptions&) {
  output.view({-1}).copy_(input.view({getSize(), -1}).select(0, getRank()));
  return record(c10d::OpType::_REDUCE_SCATTER_BASE, output);
}

FakeBackend::WorkPtr FakeBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions&) {
  for (std::size_t i = 0; i < outputs.size(); ++i) outputs[i].copy_(inputs[i]);
  return record(c10d::OpType::ALLTOALL, first(inputs));
}

FakeBackend::WorkPtr FakeBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                std::vector<std::int64_t>&, std::vector<std::int64_t>&,
                                                const c10d::AllToAllOptions&) {
  output.copy_(input);
  return record(c10d::OpType::ALLTOALL_BASE, input);
}

FakeBackend::WorkPtr FakeBackend::send(Tensors& tensors, int, int) {
  return record(c10d::OpType::SEND, first(tensors));
}

FakeBackend::WorkPtr FakeBackend::recv(Tensors& tensors, int, int) {
  return record(c10d::OpType::RECV, first(tensors));
}

FakeBackend::WorkPtr FakeBackend::recvAnysource(Tensors& tensors, int) {
  return record(c10d::OpType::RECVANYSOURCE, first(tensors));
}

FakeBackend::WorkPtr FakeBackend::barrier(const c10d::BarrierOptions&) {
  return record(c10d::OpType::BARRIER, {});
}

}  // namespace lockstep::backends
