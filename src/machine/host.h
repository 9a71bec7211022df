// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::machine {

// The host's memory, in bytes.
struct Memory {
  std::uint64_t total = 0;
  std::uint64_t available = 0;                  // without swapping, ignoring cgroups
  std::optional<std::uint64_t> cgroup_limit{};  // the tightest of this process
  std::optional<std::uint64_t> cgroup_left{};   // in the group with the least left
};

// A NUMA node and its memory in bytes.
struct NumaNode {
  int node = 0;
  std::vector<int> cpus{};  // including those outside the affinity mask
  std::uint64_t total = 0;
  std::uint64_t free = 0;
};

// The processors.
struct Processor {
  std::string model{};            // as in "AMD EPYC 7763 64-Core Processor"; the architecture if unknown
  int online = 1;                 // logical CPUs of the host
  int allowed = 1;                // CPUs in the affinity mask
  std::optional<double> quota{};  // CPU time that the cgroups allow, in cores
  int usable = 1;                 // usable_cores()
  int physical = 1;               // cores, not threads, among the allowed
  int packages = 1;               // sockets among the allowed
  double load = 0;                // runnable processes, mean of the last minute
};

// `process`: the process's folder in /proc.
Memory read_memory(const std::filesystem::path& proc = "/proc",
                   const std::filesystem::path& process = "/proc/self");

// Those online; empty where the kernel knows none.
std::vector<NumaNode> read_numa_nodes(const std::filesystem::path& sysfs = "/sys");

Processor read_processor(const std::filesystem::path& sysfs = "/sys",
                         const std::filesystem::path& proc = "/proc",
                         const std::filesystem::path& process = "/proc/self");

// "0-3,8" for {0, 1, 2, 3, 8}: the kernel's notation of an ascending list.
std::string cpu_list_text(const std::vector<int>& cpus);

}  // namespace lockstep::machine
