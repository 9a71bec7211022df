// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <lockstep/base/env.h>

#include "doctor/facts.h"
#include "doctor/finding.h"

namespace lockstep::cli {

// Each says what one fact means for training. They look at nothing but their arguments.

Finding check_libtorch(const LibTorch& libtorch);
/// Whether LibTorch can use the GPUs that are here and not hidden.
Finding check_cuda(const LibTorch& libtorch, const machine::Gpus& gpus);
/// One for each backend that is built.
Findings check_backends(const LibTorch& libtorch);

Finding check_loopback(const Ports& ports);
Finding check_own_address(const Ports& ports);
/// Nothing where no --port was given.
Findings check_port(const Ports& ports);
Finding check_interfaces(const Network& network);
Finding check_host_name(const Network& network);
/// GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME, where they are set.
Findings check_interface_variables(const Network& network, const Env& env);

Finding check_cores(const machine::Processor& processor);
Finding check_memory(const machine::Memory& memory);
/// What the backend shm needs.
Finding check_memfd(const SharedMemoryFacts& facts);
/// What NCCL and others need.
Finding check_dev_shm(const SharedMemoryFacts& facts, bool has_gpus);
Finding check_clock(const Clock& clock);
Finding check_open_files(const Limits& limits);
Finding check_processes(const Limits& limits);
Finding check_locked_memory(const Limits& limits);
Finding check_core_files(const Limits& limits);

/// Whether driver and nvidia-smi work and agree.
Finding check_gpu_driver(const GpuDriver& driver, const machine::Gpus& gpus);
/// One for each GPU that is not hidden.
Findings check_gpus(const machine::Gpus& gpus);

/// Variables that are known to hurt, where they are set; one that is ok where none is.
Findings check_environment(const Env& env, const Ports& ports, const machine::Processor& processor);

/// All of them, in the order in which they are shown.
Findings check_all(const Facts& facts, const Env& env);

}  // namespace lockstep::cli
