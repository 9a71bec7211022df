// SPDX-License-Identifier: BSD-3-Clause
#include "device/required_device.h"

#include <lockstep/device/device.h>

#include "base/throw_error.h"

namespace lockstep {
namespace {

// "no device of that type", "cuda:0", "cuda:0 to cuda:3"
std::string usable_devices(c10::DeviceType type, int count) {
  const auto name = c10::DeviceTypeName(type, true);
  if (count == 0) return "no device of that type";
  return count == 1 ? fmt::format("{}:0", name) : fmt::format("{}:0 to {}:{}", name, name, count - 1);
}

}  // namespace

void require_device(std::string_view caller, const c10::Device& device) {
  const int count = device_count(device.type());
  if (count > 0 && (!device.has_index() || device.index() < count)) return;
  throw_error<ArgumentError>(
      "{}: there is no {}; this process can use {}. Use context.device(), the device that init() has chosen "
      "for this rank, or at::kCPU; `lockstep doctor` shows the GPUs of this host",
      caller, device.str(), usable_devices(device.type(), count));
}

}  // namespace lockstep
