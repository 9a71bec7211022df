// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <driver_types.h>
#include <functional>

// What the simulated kernels and NCCL need of the simulated runtime beyond CUDA's own interface.
extern "C" {

// Runs the work on the stream as a kernel would run: later, or in the replays of a graph. All later
// calls report an exception, as they report the failure of a kernel.
cudaError_t lockstep_simulated_launch(cudaStream_t stream, const std::function<void()>& work);

// Where device code finds the bytes of an address, of the host or of a device.
void* lockstep_simulated_bytes(const void* address);
}
