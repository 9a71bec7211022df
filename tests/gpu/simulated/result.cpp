// SPDX-License-Identifier: BSD-3-Clause
#include "result.h"

#include <cstdio>

#include "devices.h"

namespace lockstep::simulated {

cudaError_t& last_error() {
  thread_local auto error = cudaSuccess;
  return error;
}

cudaError_t report(cudaError_t result) {
  if (result == cudaSuccess) result = device_failure();
  if (result != cudaSuccess) last_error() = result;
  return result;
}

cudaError_t not_simulated(const char* function) {
  std::fprintf(stderr, "simulated GPU: %s is not simulated\n", function);
  return report(cudaErrorNotSupported);
}

}  // namespace lockstep::simulated
