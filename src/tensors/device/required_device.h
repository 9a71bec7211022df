// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string_view>

#include <c10/core/Device.h>

namespace lockstep {

// Throws ArgumentError that begins with `caller` and says what to use instead, if this process cannot use
// `device`.
void require_device(std::string_view caller, const c10::Device& device);

}  // namespace lockstep
