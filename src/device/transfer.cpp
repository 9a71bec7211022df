// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <lockstep/device/device.h>
#include <lockstep/device/transfer.h>

#include "base/throw_error.h"

namespace lockstep {
namespace {

c10::Stream side_stream(const c10::Device& device) {
  if (device.is_cpu()) throw ArgumentError("TransferStream: the CPU has no streams; copy to it directly");
  const int count = device_count(device.type());
  if (count == 0 || device.index() >= count) {
    throw_error<ArgumentError>("TransferStream: there is no {}; this process can use {} devices of that type",
                               device.str(), count);
  }
  const c10::impl::VirtualGuardImpl guard(device.type());
  const auto target = device.has_index() ? device : guard.getDevice();
  try {
    return guard.getStreamFromGlobalPool(target);
  } catch (const c10::Error& error) {
    throw_error<ArgumentError>("TransferStream: {} has no streams: {}", target.str(),
                               error.what_without_backtrace());
  }
}

}  // namespace

bool can_pin_memory() {
  const auto kind = at::getAccelerator(false);
  return kind && at::globalContext().getAcceleratorHooksInterface(*kind).isAvailable();
}

at::Tensor pin_memory(const at::Tensor& tensor) { return tensor.is_cpu() ? tensor.pin_memory() : tensor; }

c10::Event record_event(const c10::Device& device) {
  c10::Event event(device.type());
  event.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return event;
}

void wait_and_record_stream(const at::Tensor& tensor, const c10::Event& event) {
  if (tensor.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(tensor.device().type());
  const auto stream = guard.getStream(tensor.device());
  event.block(stream);
  // The allocator would return freed memory to the stream that allocated it, without waiting for this one.
  if (tensor.has_storage()) guard.recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
}

TransferStream::TransferStream(const c10::Device& device) : stream_(side_stream(device)) {}

at::Tensor TransferStream::copy_to_device(const at::Tensor& tensor) const {
  return tensor.to(device(), tensor.scalar_type(), /*non_blocking=*/true);
}

}  // namespace lockstep
