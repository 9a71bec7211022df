// SPDX-License-Identifier: BSD-3-Clause
#include "backends/by_device/by_device_backend.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <lockstep/base/error.h>

namespace lockstep::backends {

using Tensors = ByDeviceBackend::Tensors;
using WorkPtr = ByDeviceBackend::WorkPtr;

ByDeviceBackend::ByDeviceBackend(std::vector<BackendHandle> parts)
    : Backend(parts.front().backend->getRank(), parts.front().backend->getSize()), parts_(std::move(parts)) {}

const std::string ByDeviceBackend::getBackendName() const {
  std::string name;
  for (const auto& part : parts_) {
    for (const auto device : part.traits.devices) {
      name += fmt::format("{}{}:{}", name.empty() ? "" : ",", c10::DeviceTypeName(device, true),
                          part.backend->getBackendName());
    }
  }
  return name;
}

BackendTraits ByDeviceBackend::traits() const {
  const auto& host = parts_.front().traits;
  BackendTraits all{.notices_death = host.notices_death};
  all.devices.clear();
  for (const auto& part : parts_) {
    all.devices.insert(part.traits.devices.begin(), part.traits.devices.end());
    all.parts.push_back(part.traits);
  }
  all.device_advice = "give the group a backend for that device too";
  return all;
}

const BackendHandle& ByDeviceBackend::part(const c10::Device& device) const {
  const auto found = std::ranges::find_if(
      parts_, [&](const BackendHandle& each) { return each.traits.devices.contains(device.type()); });
  if (found != parts_.end()) return *found;
  throw ArgumentError(fmt::format("{} has no backend for tensors on {}", getBackendName(), device.str()));
}

c10d::Backend& ByDeviceBackend::next_on(const c10::Device& device) {
  auto& backend = *part(device).backend;
  const auto next = std::exchange(next_, {});
  if (auto* listener = dynamic_cast<comm::IssueListener*>(&backend)) listener->next_call(next);
  return backend;
}

void ByDeviceBackend::next_call(const comm::IssuedCall& call) { next_ = call; }

const comm::StreamBackend* ByDeviceBackend::streams_of(const c10d::Work& work) const {
  for (const auto& part : parts_) {
    const auto* streams = dynamic_cast<const comm::StreamBackend*>(part.backend.get());
    if (streams != nullptr && streams->ends_on_stream(work)) return streams;
  }
  return nullptr;
}

bool ByDeviceBackend::ends_on_stream(const c10d::Work& work) const { return streams_of(work) != nullptr; }

WorkPtr ByDeviceBackend::observer_of(const WorkPtr& work) const {
  return streams_of(*work)->observer_of(work);
}

WorkPtr ByDeviceBackend::mark_stream() const {
  for (const auto& part : parts_) {
    if (const auto* streams = dynamic_cast<const comm::StreamBackend*>(part.backend.get())) {
      return streams->mark_stream();
    }
  }
  throw Error(fmt::format("{} has no calls on a stream", getBackendName()));
}

void ByDeviceBackend::prepare_observing_thread() const {
  for (const auto& part : parts_) {
    const auto* streams = dynamic_cast<const comm::StreamBackend*>(part.backend.get());
    if (streams != nullptr) streams->prepare_observing_thread();
  }
}

void ByDeviceBackend::setTimeout(std::chrono::milliseconds timeout) {
  for (const auto& part : parts_) part.backend->setTimeout(timeout);
}

void ByDeviceBackend::for_each_part(void (c10d::Backend::*action)()) {
  std::exception_ptr failure;
  for (auto part = parts_.rbegin(); part != parts_.rend(); ++part) {
    try {
      (part->backend.get()->*action)();
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

void ByDeviceBackend::abort() { for_each_part(&c10d::Backend::abort); }
void ByDeviceBackend::shutdown() { for_each_part(&c10d::Backend::shutdown); }

at::Tensor ByDeviceBackend::allocateTensor(long size, at::TensorOptions options) {
  const auto device = options.device();
  const auto& backend = part(device).backend;
  const auto index = device.has_index() ? device.index() : c10::DeviceIndex(0);
  return backend->supportsTensorAlloc(index) ? backend->allocateTensor(size, options)
                                             : at::empty({size}, options);
}

WorkPtr ByDeviceBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  return next_on(tensors.front()).broadcast(tensors, options);
}

WorkPtr ByDeviceBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  return next_on(tensors.front()).allreduce(tensors, options);
}

WorkPtr ByDeviceBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  return next_on(tensors.front()).reduce(tensors, options);
}

WorkPtr ByDeviceBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                   const c10d::AllgatherOptions& options) {
  return next_on(inputs.front()).allgather(outputs, inputs, options);
}

WorkPtr ByDeviceBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                         const c10d::AllgatherOptions& options) {
  return next_on(input)._allgather_base(output, input, options);
}

WorkPtr ByDeviceBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                const c10d::GatherOptions& options) {
  return next_on(inputs.front()).gather(outputs, inputs, options);
}

WorkPtr ByDeviceBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                 const c10d::ScatterOptions& options) {
  return next_on(outputs.front()).scatter(outputs, inputs, options);
}

WorkPtr ByDeviceBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                        const c10d::ReduceScatterOptions& options) {
  return next_on(outputs.front()).reduce_scatter(outputs, inputs, options);
}

WorkPtr ByDeviceBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                              const c10d::ReduceScatterOptions& options) {
  return next_on(input)._reduce_scatter_base(output, input, options);
}

WorkPtr ByDeviceBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  return next_on(inputs.front()).alltoall(outputs, inputs, options);
}

WorkPtr ByDeviceBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                       std::vector<std::int64_t>& output_sizes,
                                       std::vector<std::int64_t>& input_sizes,
                                       const c10d::AllToAllOptions& options) {
  return next_on(input).alltoall_base(output, input, output_sizes, input_sizes, options);
}

WorkPtr ByDeviceBackend::send(Tensors& tensors, int dst, int tag) {
  return next_on(tensors.front()).send(tensors, dst, tag);
}

WorkPtr ByDeviceBackend::recv(Tensors& tensors, int src, int tag) {
  return next_on(tensors.front()).recv(tensors, src, tag);
}

WorkPtr ByDeviceBackend::recvAnysource(Tensors& tensors, int tag) {
  return next_on(tensors.front()).recvAnysource(tensors, tag);
}

WorkPtr ByDeviceBackend::barrier(const c10d::BarrierOptions& options) {
  return next_on(c10::Device(c10::kCPU)).barrier(options);
}

void ByDeviceBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  next_on(c10::Device(c10::kCPU)).monitoredBarrier(options, wait_all_ranks);
}

BackendHandle join_by_device(std::vector<BackendHandle> parts) {
  const auto host_group = parts.front().host_group;
  auto backend = c10::make_intrusive<ByDeviceBackend>(std::move(parts));
  auto traits = backend->traits();
  return {.backend = std::move(backend), .traits = std::move(traits), .host_group = host_group};
}

}  // namespace lockstep::backends
