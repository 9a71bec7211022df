// SPDX-License-Identifier: BSD-3-Clause
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/device/device.h>

namespace lockstep {
namespace {

// What LibTorch registered for a kind of device; CUDA's needs no header of CUDA this way.
const c10::impl::DeviceGuardImplInterface* guard_of(c10::DeviceType type) {
  return c10::impl::hasDeviceGuardImpl(type) ? c10::impl::getDeviceGuardImpl(type) : nullptr;
}

}  // namespace

int device_count(c10::DeviceType type) {
  if (type == c10::DeviceType::CPU) return 1;
  const auto* guard = guard_of(type);
  return guard == nullptr ? 0 : static_cast<int>(guard->deviceCount());
}

void set_device(const c10::Device& device) {
  if (device.is_cpu()) return;
  const int count = device_count(device.type());
  if (device.has_index() && device.index() >= count) {
    throw ArgumentError(
        fmt::format("set_device: there is no {}; this process can use {} of that kind", device.str(), count));
  }
  if (count == 0) {
    throw ArgumentError(
        fmt::format("set_device: {}: this process can use no device of that kind", device.str()));
  }
  if (device.has_index()) guard_of(device.type())->setDevice(device);
}

void synchronize(const c10::Device& device) {
  if (device.is_cpu()) return;
  if (device_count(device.type()) == 0) {
    throw ArgumentError(
        fmt::format("synchronize: {}: this process can use no device of that kind", device.str()));
  }
  const auto* guard = guard_of(device.type());
  guard->synchronizeDevice(device.has_index() ? device.index() : guard->getDevice().index());
}

}  // namespace lockstep
