// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "doctor/facts.h"

namespace lockstep::doctor {

// Each evaluates one fact about the machine for training. They use only their arguments.

Finding check_cores(const machine::Processor& processor);
Finding check_memory(const machine::Memory& memory);
// For the backend shm.
Finding check_memfd(const SharedMemoryFacts& facts);
// For NCCL.
Finding check_dev_shm(const SharedMemoryFacts& facts, bool has_gpus);
Finding check_clock(const Clock& clock);
Finding check_open_files(const Limits& limits);
Finding check_processes(const Limits& limits);
Finding check_locked_memory(const Limits& limits);
Finding check_core_files(const Limits& limits);
// One for each limit, and for what limits of containers take away.
Findings check_process_limits(const ProcessLimits& limits);

// Whether the driver and nvidia-smi work and report the same GPUs.
Finding check_gpu_driver(const GpuDriver& driver, const machine::Gpus& gpus);
// One for each visible GPU.
Findings check_gpus(const machine::Gpus& gpus);
// Whether LibTorch can use the visible GPUs.
Finding check_cuda(const LibTorch& libtorch, const machine::Gpus& gpus);

}  // namespace lockstep::doctor
