// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "doctor/checks.h"
#include "doctor/table.h"

namespace lockstep::doctor {
namespace {

using machine::Gpu;

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

std::string smi_remedy(const std::string& said) {
  if (contains(said, "lost") || contains(said, "fallen off the bus") ||
      contains(said, "Unable to determine")) {
    return "reset the GPU or reboot; when it comes back, look for Xid in dmesg: it may be broken";
  }
  if (contains(said, "mismatch"))
    return "the driver was updated while loaded: reboot, or reload the nvidia modules";
  if (contains(said, "no answer")) return "the driver hangs: look for Xid in dmesg, and reboot";
  return "load the driver (modprobe nvidia), or start the container with --gpus all; see dmesg for its "
         "errors";
}

std::string processes_text(const Gpu& gpu) {
  std::vector<std::string> all;
  for (const auto& process : gpu.processes)
    all.push_back(fmt::format("{} (pid {})", process.command, process.pid));
  return fmt::format("{}", fmt::join(all, ", "));
}

bool is_in_use(const Gpu& gpu) {
  constexpr std::uint64_t idle_share = 10;  // drivers keep some megabytes
  return !gpu.processes.empty() ||
         (gpu.memory_used && gpu.memory_total && *gpu.memory_used > *gpu.memory_total / idle_share);
}

Finding check_gpu(const Gpu& gpu) {
  const auto name = fmt::format("gpu {}", gpu.index);
  if (gpu.ecc_errors.value_or(0) > 0) {
    return problem(name,
                   fmt::format("{} uncorrected ECC errors since the driver was loaded", *gpu.ecc_errors),
                   "end what uses it and reset it (nvidia-smi --gpu-reset); replace it if they come back");
  }
  if (gpu.compute_mode == "Prohibited") {
    return problem(name, "its compute mode is Prohibited: no process may use it",
                   fmt::format("nvidia-smi -i {} -c DEFAULT", gpu.index));
  }
  if (is_in_use(gpu)) {
    return warning(name,
                   fmt::format("{} of {} in use{}", bytes_text(gpu.memory_used), bytes_text(gpu.memory_total),
                               gpu.processes.empty() ? "" : " by " + processes_text(gpu)),
                   "end these processes, or hide the GPU with CUDA_VISIBLE_DEVICES");
  }
  if (gpu.compute_mode.starts_with("Exclusive")) {
    return warning(name, fmt::format("its compute mode is {}: one process at a time", gpu.compute_mode),
                   fmt::format("nothing with one rank a GPU; else: nvidia-smi -i {} -c DEFAULT", gpu.index));
  }
  return ok(name, fmt::format("{}, {} free of other processes", gpu.name, bytes_text(gpu.memory_total)));
}

int shown_gpus(const machine::Gpus& gpus) {
  return static_cast<int>(std::ranges::count(gpus.gpus, false, &Gpu::hidden));
}

}  // namespace

Finding check_cuda(const LibTorch& libtorch, const machine::Gpus& gpus) {
  const int shown = shown_gpus(gpus);
  if (!libtorch.error.empty() || shown == 0) return ok("cuda", "no GPU that LibTorch should use");
  if (libtorch.cuda.empty()) {
    return warning("cuda",
                   fmt::format("this host has {} GPUs, but this LibTorch was built without CUDA", shown),
                   "build Lockstep with a LibTorch that has CUDA (Torch_DIR), to train on them");
  }
  if (libtorch.cuda_devices == 0) {
    return problem(
        "cuda",
        fmt::format("{} GPUs are here, but LibTorch, built for CUDA {}, cannot use any", shown,
                    libtorch.cuda),
        "update the driver to one for this CUDA (nvidia-smi shows its own), or take another LibTorch");
  }
  return ok("cuda", fmt::format("LibTorch, built for CUDA {}, can use {} GPUs", libtorch.cuda,
                                libtorch.cuda_devices));
}

Finding check_gpu_driver(const GpuDriver& driver, const machine::Gpus& gpus) {
  if (!gpus.problem.empty()) return problem("gpu driver", gpus.problem, smi_remedy(gpus.problem));
  const auto found = static_cast<int>(gpus.gpus.size());
  if (driver.version.empty() && found == 0) return ok("gpu driver", "none: training uses the CPU");
  if (!gpus.has_smi) {
    return warning("gpu driver", "it is loaded, but nvidia-smi is not on PATH, so its GPUs are not checked",
                   "put nvidia-smi on PATH (container: NVIDIA_DRIVER_CAPABILITIES=compute,utility)");
  }
  if (found < driver.devices || found == 0) {
    return problem("gpu driver",
                   fmt::format("the kernel lists {} GPUs, nvidia-smi {}", driver.devices, found),
                   "a GPU may have fallen off the bus: look for Xid in dmesg, and reboot");
  }
  if (shown_gpus(gpus) == 0) {
    return warning("gpu driver", fmt::format("CUDA_VISIBLE_DEVICES hides all {} GPUs", found),
                   "unset CUDA_VISIBLE_DEVICES, to train on them");
  }
  return ok("gpu driver", fmt::format("{}, {} GPUs", gpus.gpus.front().driver, found));
}

Findings check_gpus(const machine::Gpus& gpus) {
  Findings findings;
  for (const auto& gpu : gpus.gpus) {
    if (!gpu.hidden) findings.push_back(check_gpu(gpu));
  }
  return findings;
}

}  // namespace lockstep::doctor
