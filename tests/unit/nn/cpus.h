// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstddef>
#include <vector>

#include <lockstep/nn/data_parallel.h>

namespace lockstep::testing {

// The device ids of a DataParallel of `count` replicas on the CPU.
inline std::vector<DeviceId> cpus(std::size_t count) { return std::vector<DeviceId>(count, at::kCPU); }

}  // namespace lockstep::testing
