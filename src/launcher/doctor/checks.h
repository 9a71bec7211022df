// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include "base/env.h"
#include "doctor/facts.h"

namespace lockstep::doctor {

// Each evaluates one fact about the software, the network or the environment for training; host_checks.h has
// those about the machine. They use only their arguments.

Finding check_libtorch(const LibTorch& libtorch);
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

// Variables that cause problems, if set; else one finding that is ok.
Findings check_environment(const Env& env, const Ports& ports, const machine::Processor& processor);

// All checks, in display order.
Findings check_all(const Facts& facts, const Env& env);

}  // namespace lockstep::doctor
