// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "base/env.h"
#include "doctor/facts.h"

namespace lockstep::doctor {

// Each evaluates one fact for training. They use only their arguments.

Finding check_libtorch(const LibTorch& libtorch);
// Whether LibTorch can use the visible GPUs.
Finding check_cuda(const LibTorch& libtorch, const machine::Gpus& gpus);
// One for each backend of the build.
Findings check_backends(const LibTorch& libtorch);

Finding check_loopback(const Ports& ports);
Finding check_own_address(const Ports& ports);
// Empty without --port.
Findings check_port(const Ports& ports);
Finding check_interfaces(const Network& network);
Finding check_host_name(const Network& network);
// GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME, if set.
Findings check_interface_variables(const Network& network, const Env& env);

// One for each limit, and for what limits of containers take away.
Findings check_process_limits(const ProcessLimits& limits);

// Whether the driver and nvidia-smi work and report the same GPUs.
Finding check_gpu_driver(const GpuDriver& driver, const machine::Gpus& gpus);
// One for each visible GPU.
Findings check_gpus(const machine::Gpus& gpus);

// Variables that cause problems, if set; else one finding that is ok.
Findings check_environment(const Env& env, const Ports& ports, const machine::Processor& processor);

// All checks, in display order.
Findings check_all(const Facts& facts, const Env& env);

}  // namespace lockstep::doctor
