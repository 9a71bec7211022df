// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::machine {

/// A process that computes on a GPU.
struct GpuProcess {
  int pid = 0;  ///< of the host: in a container it may name no process there
  std::string command{};
  std::optional<std::uint64_t> memory{};  ///< bytes
};

/// An NVIDIA GPU. What nvidia-smi does not know ("[N/A]") is nullopt or "".
struct Gpu {
  int index = 0;  ///< nvidia-smi's number, in the order of the PCI bus
  std::string name{};
  std::string uuid{};
  std::string pci_bus{};
  std::optional<std::uint64_t> memory_total{};  ///< bytes
  std::optional<std::uint64_t> memory_used{};   ///< bytes
  std::optional<int> utilization{};             ///< percent of the last sample with a kernel running
  std::optional<int> temperature{};             ///< degrees Celsius
  std::optional<double> power{};                ///< watts drawn
  std::optional<double> power_limit{};          ///< watts
  std::string driver{};                         ///< version
  std::string compute_mode{};                   ///< "Default", "Exclusive_Process", "Prohibited", ...
  std::string mig_mode{};                       ///< "Enabled", "Disabled"
  std::optional<std::int64_t> ecc_errors{};     ///< uncorrected ones since the driver was loaded
  bool hidden = false;                          ///< by CUDA_VISIBLE_DEVICES
  std::vector<GpuProcess> processes{};
};

/// All GPUs, or why they are not known.
struct Gpus {
  bool has_smi = false;  ///< whether nvidia-smi could be started
  std::vector<Gpu> gpus{};
  std::string problem{};  ///< what went wrong with nvidia-smi, in its own words; empty when nothing did
};

/// Asks nvidia-smi, which is looked for on PATH, and gives up at `timeout`. `visible`: the value of
/// CUDA_VISIBLE_DEVICES, nullopt when unset. Without nvidia-smi there are no GPUs and no problem.
Gpus read_gpus(const std::optional<std::string>& visible,
               std::chrono::milliseconds timeout = std::chrono::seconds(10));

/// Marks as hidden what CUDA does not show: with a value, GPUs that are not in it, and all from the first
/// entry on that names none. An entry is an index or the beginning of a UUID; of GPUs in MIG mode one with an
/// entry "MIG-..." is believed to show them.
void mark_hidden(std::vector<Gpu>& gpus, const std::optional<std::string>& visible);

}  // namespace lockstep::machine
