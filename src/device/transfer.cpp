// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/device/device.h>
#include <lockstep/device/transfer.h>

namespace lockstep {
namespace {

c10::Stream stream_beside(const c10::Device& device) {
  if (device.is_cpu()) throw ArgumentError("TransferStream: the CPU has no streams; copy to it directly");
  const int count = device_count(device.type());
  if (count == 0 || device.index() >= count) {
    throw ArgumentError(
        fmt::format("there is no {}; this process can use {} devices of that kind", device.str(), count));
  }
  const c10::impl::VirtualGuardImpl guard(device.type());
  const auto place = device.has_index() ? device : guard.getDevice();
  try {
    return guard.getStreamFromGlobalPool(place);
  } catch (const c10::Error& error) {
    throw ArgumentError(
        fmt::format("{} has no streams to copy on: {}", place.str(), error.what_without_backtrace()));
  }
}

}  // namespace

bool can_pin_memory() {
  const auto kind = at::getAccelerator(false);
  return kind && at::globalContext().getAcceleratorHooksInterface(*kind).isAvailable();
}

at::Tensor pin_memory(const at::Tensor& tensor) { return tensor.is_cpu() ? tensor.pin_memory() : tensor; }

c10::Event mark_queued_work(const c10::Device& device) {
  c10::Event event(device.type());
  event.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return event;
}

void take_over(const at::Tensor& tensor, const c10::Event& event) {
  if (tensor.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(tensor.device().type());
  const auto stream = guard.getStream(tensor.device());
  event.block(stream);
  // Freed memory goes back to the stream on which it was allocated, which knows nothing of this one.
  if (tensor.has_storage()) guard.recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
}

TransferStream::TransferStream(const c10::Device& device) : stream_(stream_beside(device)) {}

at::Tensor TransferStream::copied(const at::Tensor& tensor) const {
  return tensor.to(device(), tensor.scalar_type(), /*non_blocking=*/true);
}

}  // namespace lockstep
