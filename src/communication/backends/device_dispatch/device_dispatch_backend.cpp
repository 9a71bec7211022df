// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <exception>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "backends/factories.h"
#include "base/throw_error.h"
#include "comm/from_c10d.h"
#include "comm/stream_watch.h"
#include "comm/to_c10d.h"

namespace lockstep::backends {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

std::string name_of(const std::vector<BackendHandle>& parts) {
  std::string name;
  for (const auto& part : parts) {
    for (const auto device : part.traits.devices) {
      name += fmt::format("{}{}:{}", name.empty() ? "" : ",", c10::DeviceTypeName(device, true),
                          part.backend->getBackendName());
    }
  }
  return name;
}

BackendTraits traits_of(const std::vector<BackendHandle>& parts) {
  BackendTraits all{.notices_death = parts.front().traits.notices_death};
  all.devices.clear();
  for (const auto& part : parts) {
    all.devices.insert(part.traits.devices.begin(), part.traits.devices.end());
    all.parts.push_back(part.traits);
  }
  all.device_advice = "give the group a backend for that device too";
  return all;
}

class DeviceDispatchBackend final : public comm::FromC10d, public comm::StreamBackend {
 public:
  explicit DeviceDispatchBackend(std::vector<BackendHandle> parts)
      : FromC10d(parts.front().backend->getRank(), parts.front().backend->getSize(), name_of(parts),
                 traits_of(parts), kNoTimeout),
        parts_(std::move(parts)) {
    for (const auto& part : parts_) {
      calls_.push_back(comm::calls_of(part.backend, part.traits));
      if (const auto* streams = dynamic_cast<const comm::StreamBackend*>(part.backend.get()))
        streams_.push_back(streams);
    }
  }

  // "cpu:shm,cuda:nccl"
  const std::string getBackendName() const override { return name_of(parts_); }
  void setTimeout(std::chrono::milliseconds timeout) override;
  void abort() override { for_each_part(&c10d::Backend::abort); }
  void shutdown() override { for_each_part(&c10d::Backend::shutdown); }
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;

  comm::OperationPtr start(const comm::Call& call, comm::Report report) override {
    const auto* tensor = comm::main_tensor(call);
    return calls_[part(tensor == nullptr ? c10::Device(c10::kCPU) : tensor->device())]->start(call, report);
  }

  bool ends_on_stream(const c10d::Work& work) const override { return streams_of(work) != nullptr; }
  WorkPtr observer_of(const WorkPtr& work) const override { return streams_of(*work)->observer_of(work); }
  void free_tensors(c10d::Work& work) const override { streams_of(work)->free_tensors(work); }
  bool waits_on_host() const override {
    return std::ranges::any_of(streams_, &comm::StreamBackend::waits_on_host);
  }
  WorkPtr mark_stream() const override;
  void prepare_observing_thread() const override {
    for (const auto* streams : streams_) streams->prepare_observing_thread();
  }

 private:
  std::size_t part(const c10::Device& device) const;
  // Ends all parts, that of the device first, even if one throws.
  void for_each_part(void (c10d::Backend::*action)());
  const comm::StreamBackend* streams_of(const c10d::Work& work) const;

  std::vector<BackendHandle> parts_;
  std::vector<std::shared_ptr<comm::CallBackend>> calls_;  // [part]
  std::vector<const comm::StreamBackend*> streams_;        // the parts whose calls end on a stream
};

std::size_t DeviceDispatchBackend::part(const c10::Device& device) const {
  const auto found = std::ranges::find_if(
      parts_, [&](const BackendHandle& each) { return each.traits.devices.contains(device.type()); });
  if (found != parts_.end()) return static_cast<std::size_t>(found - parts_.begin());
  throw_error<ArgumentError>("{} has no backend for tensors on {}", getBackendName(), device.str());
}

const comm::StreamBackend* DeviceDispatchBackend::streams_of(const c10d::Work& work) const {
  const auto found =
      std::ranges::find_if(streams_, [&](const auto* streams) { return streams->ends_on_stream(work); });
  return found == streams_.end() ? nullptr : *found;
}

WorkPtr DeviceDispatchBackend::mark_stream() const {
  if (streams_.empty()) throw_error<Error>("{} has no calls on a stream", getBackendName());
  return streams_.front()->mark_stream();
}

void DeviceDispatchBackend::setTimeout(std::chrono::milliseconds timeout) {
  for (const auto& part : parts_) part.backend->setTimeout(timeout);
}

void DeviceDispatchBackend::for_each_part(void (c10d::Backend::*action)()) {
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

at::Tensor DeviceDispatchBackend::allocateTensor(long size, at::TensorOptions options) {
  const auto device = options.device();
  const auto& backend = parts_[part(device)].backend;
  const auto index = device.has_index() ? device.index() : c10::DeviceIndex(0);
  return backend->supportsTensorAlloc(index) ? backend->allocateTensor(size, options)
                                             : at::empty({size}, options);
}

}  // namespace

BackendHandle make_device_dispatch(std::vector<BackendHandle> parts) {
  auto traits = traits_of(parts);
  const auto node_group = parts.front().node_group;
  return {.backend = c10::make_intrusive<DeviceDispatchBackend>(std::move(parts)),
          .traits = std::move(traits),
          .node_group = node_group};
}

}  // namespace lockstep::backends
