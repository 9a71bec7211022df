// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include <c10/core/Device.h>
#include <c10/core/Storage.h>

namespace lockstep::serialize {

/// Moves a CPU storage to `device`; on the CPU it stays what it is.
c10::Storage place_storage(c10::Storage storage, c10::Device device);
c10::Storage meta_storage(std::uint64_t bytes);

}  // namespace lockstep::serialize
