// SPDX-License-Identifier: BSD-3-Clause
#include <c10/core/impl/DeviceGuardImplInterface.h>
#ifdef LOCKSTEP_HAS_CUDA
#include <ATen/cuda/CUDAContext.h>
#endif

#include <lockstep/device/device.h>

#include "base/throw_error.h"

namespace lockstep {
namespace {

// nullptr when LibTorch has no such devices.
const c10::impl::DeviceGuardImplInterface* guard_of(c10::DeviceType type) {
  return c10::impl::hasDeviceGuardImpl(type) ? c10::impl::getDeviceGuardImpl(type) : nullptr;
}

void require_device(const char* caller, const c10::Device& device) {
  const int count = device_count(device.type());
  if (count > 0 && (!device.has_index() || device.index() < count)) return;
  throw_error<ArgumentError>("{}: there is no {}; this process can use {} devices of that type", caller,
                             device.str(), count);
}

}  // namespace

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

}  // namespace lockstep
