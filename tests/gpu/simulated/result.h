// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <driver_types.h>

namespace lockstep::simulated {

cudaError_t& last_error();  // of the calling thread

// Keeps an error for cudaGetLastError(); what runs on after a kernel's failure tells that.
cudaError_t report(cudaError_t result);

// For what nothing of ours has needed yet: says so and fails.
cudaError_t not_simulated(const char* function);

}  // namespace lockstep::simulated
