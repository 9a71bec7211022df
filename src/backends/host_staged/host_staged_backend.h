// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "backends/registry.h"

namespace lockstep::backends {

// A host-staged backend: carries tensors on `device` through host memory and a backend for the CPU, for ranks
// that share one GPU, where NCCL cannot connect them. A call copies to the host and waits for that copy;
// wait() copies the results back. Threads: as for the CPU backend.
BackendHandle stage_through_host(const BackendHandle& host, c10::DeviceType device);

}  // namespace lockstep::backends
