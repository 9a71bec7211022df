// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/limits.h"
#include "base/sockets.h"
#include "doctor/devices.h"

namespace lockstep::doctor {

struct Network {
  std::vector<Interface> interfaces{};
  std::string host_name{};
  std::vector<std::string> resolved{};  // the addresses of the host name
  std::string resolve_error{};          // why there are none
};

// Results of socket checks; an empty error means success.
struct Ports {
  std::string loopback_error{};      // listening on 127.0.0.1 and connecting there
  std::string own_address{};         // empty where only the loopback interface is up
  std::string own_error{};           // the same there
  std::optional<int> port{};         // of --port
  std::string port_error{};          // listening on it
  std::optional<int> master_port{};  // of MASTER_PORT
  std::string master_port_error{};   // listening on it
};

struct SharedMemoryFacts {
  std::optional<std::uint64_t> dev_shm_total{};  // bytes; nullopt where /dev/shm is not there
  std::uint64_t dev_shm_free = 0;
  std::string memfd_error{};  // empty when the backend shm gets its memory
};

struct Clock {
  bool synchronized = false;
  std::string error{};  // why the state is unknown
};

// nullopt: no limit.
struct Limits {
  std::optional<std::uint64_t> open_files{};
  std::optional<std::uint64_t> processes{};
  std::optional<std::uint64_t> locked_memory{};  // bytes
  std::optional<std::uint64_t> pids{};           // of the cgroups
  std::optional<std::uint64_t> core_size{};      // bytes
  std::string core_pattern{};
  bool has_rdma = false;  // an InfiniBand or RoCE device
};

// What the limits of this process leave; ranks inherit them. nullopt: no limit.
struct ProcessLimits {
  std::optional<std::uint64_t> file_size{};      // bytes
  std::optional<std::uint64_t> address_space{};  // bytes
  std::optional<std::uint64_t> cpu_time{};       // seconds
  std::optional<LimitShortage> address_shortage{};
  std::optional<LimitShortage> stack{};
  std::uint64_t shareable = 0;  // bytes that each of two ranks can share
  bool reads_memory = true;     // process_vm_readv, which the backend shm uses
  bool has_proc = true;
  std::string temporary_folder{};
  std::string temporary_error{};  // why it cannot be used
};

struct GpuDriver {
  std::string version{};  // the kernel's line; empty where no driver is loaded
  int devices = 0;        // GPUs that the kernel lists
};

struct BackendTrial {
  std::string name{};
  std::string error{};  // why two processes could not reduce with it
};

struct LibTorch {
  std::string error{};  // why the rest is unknown
  std::string version{};
  std::string cpu_capability{};
  std::string cuda{};    // the version it was built for; empty for a build without
  int cuda_devices = 0;  // that it can use
  std::vector<std::string> backends{};
  std::vector<BackendTrial> trials{};
};

// The input of the checks.
struct Facts {
  std::string version{};  // Lockstep's
  Devices devices{};
  Network network{};
  Ports ports{};
  SharedMemoryFacts shared_memory{};
  Clock clock{};
  Limits limits{};
  ProcessLimits process{};
  GpuDriver gpu_driver{};
  LibTorch libtorch{};
};

// Collects the facts of this host. `port`: of --port. Every wait has a deadline.
Facts read_facts(std::optional<int> port);

// The parts of read_facts().
Network read_network();
Ports try_ports(const Network& network, std::optional<int> port);
SharedMemoryFacts try_shared_memory();
Clock read_clock();
Limits read_limits();
ProcessLimits read_process_limits();
GpuDriver read_gpu_driver();
// Tries the backends one after the other where `limits` allow few processes.
LibTorch try_libtorch(const Limits& limits);

enum class Severity {
  ok,
  warning,  // training works, but may be slow or fail later
  problem,  // training fails
};

// The outcome of one check.
struct Finding {
  std::string check{};  // its name
  Severity severity = Severity::ok;
  std::string text{};    // what was found, in one line
  std::string remedy{};  // what to do about it; empty when it is ok
};

using Findings = std::vector<Finding>;

inline Finding ok(std::string check, std::string text) {
  return {.check = std::move(check), .severity = Severity::ok, .text = std::move(text)};
}
inline Finding warning(std::string check, std::string text, std::string remedy) {
  return {std::move(check), Severity::warning, std::move(text), std::move(remedy)};
}
inline Finding problem(std::string check, std::string text, std::string remedy) {
  return {std::move(check), Severity::problem, std::move(text), std::move(remedy)};
}

}  // namespace lockstep::doctor
