// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>

#include "backends/mpi/mpi_backend.h"

namespace lockstep::backends {

// A barrier in which rank 0 names the missing ranks after `limit`. `number`: of the group's barriers of this
// kind. Throws TimeoutError on all ranks that came.
void monitored_barrier(MpiGroup& group, int rank, int size, std::uint32_t number,
                       std::chrono::milliseconds limit);

}  // namespace lockstep::backends
