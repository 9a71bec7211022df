// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <deque>
#include <driver_types.h>
#include <mutex>
#include <vector>

#include "stream.h"

namespace lockstep::simulated {

struct Device {
  Device(int index, int physical) : number(physical), standard(index, 0, true) {}
  int number;       // without CUDA_VISIBLE_DEVICES
  Stream standard;  // the default stream
  std::mutex mutex;
  std::vector<Stream*> streams;  // created by the program
};

// As many as LOCKSTEP_SIMULATED_GPUS says (1), of which CUDA_VISIBLE_DEVICES may leave some.
std::deque<Device>& devices();

int& current_device();  // of the calling thread

// nullptr and CUDA's two names of it are the current device's default stream.
Stream& stream_of(cudaStream_t handle);

void wait_for_device(int device);

// The failure of a kernel, which all later calls tell.
std::atomic<cudaError_t>& device_failure();

}  // namespace lockstep::simulated
