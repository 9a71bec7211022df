// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::machine {

// A process that computes on a GPU.
struct GpuProcess {
  int pid = 0;  // in the host's pid namespace
  std::string command{};
  std::optional<std::uint64_t> memory{};  // bytes
};

// An NVIDIA GPU. Unknown values ("[N/A]") are nullopt or "".
struct Gpu {
  int index = 0;  // nvidia-smi's number, in the order of the PCI bus
  std::string name{};
  std::string uuid{};
  std::string pci_bus{};
  std::optional<std::uint64_t> memory_total{};  // bytes
  std::optional<std::uint64_t> memory_used{};   // bytes
  std::optional<int> utilization{};             // percent of the last sample with a kernel running
  std::optional<int> temperature{};             // degrees Celsius
  std::optional<double> power{};                // watts drawn
  std::optional<double> power_limit{};          // watts
  std::string driver{};                         // version
  std::string compute_mode{};                   // "Default", "Exclusive_Process", "Prohibited", ...
  std::string mig_mode{};                       // "Enabled", "Disabled"
  std::optional<std::int64_t> ecc_errors{};     // uncorrected ones since the driver was loaded
  bool hidden = false;                          // by CUDA_VISIBLE_DEVICES
  std::vector<GpuProcess> processes{};
};

struct Gpus {
  bool has_smi = false;  // whether nvidia-smi could be started
  std::vector<Gpu> gpus{};
  std::string problem{};  // the error of nvidia-smi, or empty
};

// CUDA_VISIBLE_DEVICES; unlike Env, it distinguishes an empty value from none.
std::optional<std::string> cuda_visible_devices();

// Runs nvidia-smi from PATH, at most for `timeout`. `visible`: the value of CUDA_VISIBLE_DEVICES, nullopt
// when unset. Without nvidia-smi the result has no GPUs and no problem.
Gpus read_gpus(const std::optional<std::string>& visible,
               std::chrono::milliseconds timeout = std::chrono::seconds(10));

// Marks the GPUs that CUDA_VISIBLE_DEVICES hides: those that it does not list, and all from the first invalid
// entry on. An entry is an index or the beginning of a UUID. An entry "MIG-..." shows all GPUs in MIG mode.
void mark_hidden(std::vector<Gpu>& gpus, const std::optional<std::string>& visible);

// The commands, with the fields in the order of the parsers below.
std::vector<std::string> gpu_query();
std::vector<std::string> process_query();

// Skips lines that are not complete rows.
std::vector<Gpu> parse_gpus(const std::string& answer);

// A process and its GPU's UUID.
using ProcessOnGpu = std::pair<std::string, GpuProcess>;
std::vector<ProcessOnGpu> parse_processes(const std::string& answer);

// The number of GPUs that a process started now would see, without initializing CUDA: the nodes nvidia0,
// nvidia1, ... in `device_folder`, limited by `visible` (the value of CUDA_VISIBLE_DEVICES; nullopt when
// unset). As in CUDA, the first entry that names no device hides itself and all that follow, and an empty
// value hides all. Entries such as GPU-<uuid> are not verified.
int visible_gpus(const std::filesystem::path& device_folder = "/dev",
                 const std::optional<std::string>& visible = cuda_visible_devices());

}  // namespace lockstep::machine
