// SPDX-License-Identifier: BSD-3-Clause
#include <utility>

#include <lockstep/device/device.h>

#include "device/mode_kernels.h"

namespace lockstep {

DeviceContext::DeviceContext(c10::Device device)
    : key_((device::register_factory_kernels(), c10::DispatchKeySet(device::kModeKey))),
      outer_(std::exchange(device::call_defaults().device, device)) {}

DeviceContext::~DeviceContext() { device::call_defaults().device = outer_; }

}  // namespace lockstep
