// SPDX-License-Identifier: BSD-3-Clause

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#ifdef LOCKSTEP_HAS_CUDA
#include <ATen/cuda/CUDAContext.h>
#endif

#include <lockstep/device/device.h>

#include "base/caller_place.h"
#include "base/throw_error.h"

namespace lockstep {
namespace {

// nullptr when LibTorch has no such devices.
const c10::impl::DeviceGuardImplInterface* guard_of(c10::DeviceType type) {
  return c10::impl::hasDeviceGuardImpl(type) ? c10::impl::getDeviceGuardImpl(type) : nullptr;
}

c10::Stream side_stream(const c10::Device& device) {
  if (device.is_cpu()) throw ArgumentError("TransferStream: the CPU has no streams; copy to it directly");
  require_device("TransferStream", device);
  const c10::impl::VirtualGuardImpl guard(device.type());
  const auto target = device.has_index() ? device : guard.getDevice();
  try {
    return guard.getStreamFromGlobalPool(target);
  } catch (const c10::Error& error) {
    throw_error<ArgumentError>("TransferStream: {} has no streams: {}", target.str(),
                               error.what_without_backtrace());
  }
}

// "no device of that type", "cuda:0", "cuda:0 to cuda:3"
std::string usable_devices(c10::DeviceType type, int count) {
  const auto name = c10::DeviceTypeName(type, true);
  if (count == 0) return "no device of that type";
  return count == 1 ? fmt::format("{}:0", name) : fmt::format("{}:0 to {}:{}", name, name, count - 1);
}

}  // namespace

c10::Device DeviceId::cuda_device(std::int64_t index, std::source_location where) {
  if (index >= 0 && index <= 127) return {c10::kCUDA, static_cast<c10::DeviceIndex>(index)};
  const CallerPlace place(where);
  throw_error<ArgumentError>("device_ids: {} is not the index of a CUDA device; it is 0 to 127", index);
}

DeviceId::DeviceId(const std::string& name, std::source_location where) : device_(c10::kCPU) {
  const CallerPlace place(where);
  try {
    device_ = c10::Device(name);
  } catch (const c10::Error&) {
    throw_error<ArgumentError>("\"{}\" is not a device; write \"cpu\", \"cuda\" or \"cuda:1\"", name);
  }
}

void require_device(std::string_view caller, const c10::Device& device) {
  const int count = device_count(device.type());
  if (count > 0 && (!device.has_index() || device.index() < count)) return;
  throw_error<ArgumentError>(
      "{}: there is no {}; this process can use {}. Use context.device(), the device that init() has chosen "
      "for this rank, or at::kCPU; `lockstep doctor` shows the GPUs of this host",
      caller, device.str(), usable_devices(device.type(), count));
}

int device_count(c10::DeviceType type) {
  if (type == c10::DeviceType::CPU) return 1;
  const auto* guard = guard_of(type);
  return guard == nullptr ? 0 : static_cast<int>(guard->deviceCount());
}

void set_device(const c10::Device& device) {
  if (device.is_cpu()) return;
  require_device("set_device", device);
  if (device.has_index()) guard_of(device.type())->setDevice(device);
}

void synchronize(const c10::Device& device) {
  if (device.is_cpu()) return;
  require_device("synchronize", device);
  const auto* guard = guard_of(device.type());
  guard->synchronizeDevice(device.has_index() ? device.index() : guard->getDevice().index());
}

std::string device_identity(const c10::Device& device) {
  if (!device.is_cuda()) return "";
  require_device("device_identity", device);
#ifdef LOCKSTEP_HAS_CUDA
  const auto* properties = at::cuda::getDeviceProperties(device.index());
  std::string uuid;
  for (const auto byte : properties->uuid.bytes)
    uuid += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return fmt::format("{} with UUID {}", properties->name, uuid);
#else
  return "";
#endif
}

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
