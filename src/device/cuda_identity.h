// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>

#include <c10/core/Device.h>

namespace lockstep {

// "" in a build without CUDA's headers.
std::string cuda_identity(const c10::Device& device);

}  // namespace lockstep
