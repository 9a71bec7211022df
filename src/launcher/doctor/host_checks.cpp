// SPDX-License-Identifier: BSD-3-Clause
#include "doctor/host_checks.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "doctor/table.h"

namespace lockstep::doctor {
namespace {

constexpr std::uint64_t kGibibyte = std::uint64_t{1} << 30;

std::string limit_text(std::optional<std::uint64_t> limit) {
  return limit ? std::to_string(*limit) : "unlimited";
}

Finding check_limit(const std::string& check, std::optional<std::uint64_t> limit, std::uint64_t least,
                    const std::string& text, const std::string& use, const std::string& remedy) {
  constexpr std::uint64_t enough = 1024;
  if (limit.value_or(enough) >= enough) return ok(check, text);
  return *limit < least ? problem(check, text + use, remedy) : warning(check, text + use, remedy);
}

// The program that gets core dumps, where the pattern names one.
std::string core_program(const std::string& pattern) {
  if (!pattern.starts_with('|')) return "";
  return pattern.substr(1, pattern.find(' ') - 1);
}

}  // namespace

Finding check_cores(const machine::Processor& processor) {
  const auto text = fmt::format("{} of {} usable", processor.usable, processor.online);
  if (processor.quota && *processor.quota < 1) {
    return warning("cores", fmt::format("{}, the cgroup's quota is {:.2f} of a core", text, *processor.quota),
                   "give the container or job a whole core for each rank, or more");
  }
  return ok("cores", text);
}

Finding check_memory(const machine::Memory& memory) {
  const auto left = std::min(memory.available, memory.cgroup_left.value_or(memory.available));
  const auto text = fmt::format("{} of {} available{}", bytes_text(left),
                                bytes_text(memory.cgroup_limit.value_or(memory.total)),
                                memory.cgroup_limit ? " under the cgroup's limit" : "");
  if (left >= kGibibyte) return ok("memory", text);
  return warning("memory", text,
                 memory.cgroup_limit ? "raise the memory limit of the container or job, or end what fills it"
                                     : "end what fills the memory (see: ps aux --sort -rss)");
}

Finding check_memfd(const SharedMemoryFacts& facts) {
  if (facts.memfd_error.empty()) return ok("shared memory", "memfd_create works: the backend shm has memory");
  return problem(
      "shared memory", facts.memfd_error,
      "allow memfd_create and memory for it (seccomp profile, memory limit, ulimit -f, ulimit -v)");
}

Finding check_dev_shm(const SharedMemoryFacts& facts, bool has_gpus) {
  constexpr std::uint64_t little = kGibibyte / 4;
  constexpr const char* remedy =
      "start the container with --ipc=host or --shm-size=8g, or remount /dev/shm larger";
  const auto text = facts.dev_shm_total ? fmt::format("{} of {} free", bytes_text(facts.dev_shm_free),
                                                      bytes_text(facts.dev_shm_total))
                                        : "it does not exist";
  // Only NCCL and other programs' data loaders keep their memory there.
  if (!has_gpus || facts.dev_shm_free >= little) return ok("/dev/shm", text);
  return warning("/dev/shm", text + ", which NCCL needs for GPUs of one host", remedy);
}

Finding check_clock(const Clock& clock) {
  if (!clock.error.empty()) {
    return warning("clock", "the kernel does not say whether it is synchronized: " + clock.error,
                   "allow the call adjtimex, or check with: timedatectl");
  }
  if (clock.synchronized) return ok("clock", "synchronized");
  return warning(
      "clock", "the kernel says that it is not synchronized",
      "run chronyd or systemd-timesyncd (timedatectl set-ntp true); logs and files of several hosts "
      "are out of order otherwise");
}

Finding check_open_files(const Limits& limits) {
  return check_limit("open files", limits.open_files, 256, "limit " + limit_text(limits.open_files),
                     ", but each rank needs one for every other rank and for every file of its data",
                     "ulimit -n 65536, or LimitNOFILE=65536 in the service, or nofile in limits.conf");
}

Finding check_processes(const Limits& limits) {
  const bool by_cgroup = limits.pids && (!limits.processes || *limits.pids < *limits.processes);
  const auto limit = by_cgroup ? limits.pids : limits.processes;
  return check_limit(
      "processes", limit, 64,
      fmt::format("limit {}{}", limit_text(limit), by_cgroup ? " of the cgroup (pids.max)" : ""),
      ", and every thread counts",
      by_cgroup ? "raise pids.max (docker run --pids-limit, TasksMax in the service)"
                : "ulimit -u 8192, or nproc in limits.conf");
}

Finding check_locked_memory(const Limits& limits) {
  const auto text = "limit " + (limits.locked_memory ? bytes_text(limits.locked_memory) : "unlimited");
  if (!limits.has_rdma || !limits.locked_memory) return ok("locked memory", text);
  return warning("locked memory", text + ", and the InfiniBand or RoCE device here needs more",
                 "ulimit -l unlimited, or LimitMEMLOCK=infinity in the service, or memlock in limits.conf");
}

Finding check_core_files(const Limits& limits) {
  if (limits.core_size == 0U && !limits.core_pattern.starts_with('|')) {
    return ok("core files", "none are written (ulimit -c unlimited turns them on)");
  }
  const auto program = core_program(limits.core_pattern);
  if (!program.empty() && !std::filesystem::exists(program)) {
    return warning("core files", fmt::format("go to {}, which does not exist", program),
                   "sysctl kernel.core_pattern=core.%p, or install that program");
  }
  return ok("core files", fmt::format("go to \"{}\"", limits.core_pattern));
}

namespace {

Finding check_file_size(const ProcessLimits& limits) {
  if (!limits.file_size) return ok("file size", "limit unlimited");
  return warning("file size",
                 fmt::format("limit {}: larger checkpoints cannot be written, and ranks share no more memory",
                             bytes_text(limits.file_size)),
                 "ulimit -f unlimited, or LimitFSIZE=infinity in the service, or fsize in limits.conf");
}

Finding check_address_space(const ProcessLimits& limits) {
  if (const auto& shortage = limits.address_shortage)
    return problem("address space", shortage->text, shortage->remedy);
  if (!limits.address_space) return ok("address space", "limit unlimited");
  return warning("address space",
                 fmt::format("limit {}: two ranks of this host can share {} each",
                             bytes_text(limits.address_space), bytes_text(limits.shareable)),
                 kRaiseAddressSpace);
}

Finding check_stack(const ProcessLimits& limits) {
  if (!limits.stack) return ok("stack", "large enough");
  return problem("stack", limits.stack->text, limits.stack->remedy);
}

Finding check_cpu_time(const ProcessLimits& limits) {
  if (!limits.cpu_time) return ok("cpu time", "limit unlimited");
  return warning("cpu time", fmt::format("the kernel ends each process after {} s of it", *limits.cpu_time),
                 "ulimit -t unlimited, or LimitCPU=infinity in the service, or cpu in limits.conf");
}

Finding check_reads(const ProcessLimits& limits) {
  if (limits.reads_memory) return ok("memory of ranks", "process_vm_readv works");
  return warning("memory of ranks",
                 "process_vm_readv is refused, so that messages between ranks take one more copy",
                 "allow the call (seccomp profile; docker run --cap-add SYS_PTRACE)");
}

Finding check_proc(const ProcessLimits& limits) {
  if (limits.has_proc) return ok("/proc", "mounted");
  return warning("/proc", "not mounted: limits of cgroups are unknown, and errors that ranks record are lost",
                 "mount -t proc proc /proc");
}

Finding check_temporary_files(const ProcessLimits& limits) {
  if (limits.temporary_error.empty()) return ok("temporary files", limits.temporary_folder);
  return warning("temporary files",
                 fmt::format("{}: {}; lockstep run keeps log files there unless it has --log-dir",
                             limits.temporary_folder, limits.temporary_error),
                 "free space there, or set TMPDIR to a folder that this user can write to");
}

}  // namespace

Findings check_process_limits(const ProcessLimits& limits) {
  return {check_file_size(limits),      check_address_space(limits), check_stack(limits),
          check_cpu_time(limits),       check_reads(limits),         check_proc(limits),
          check_temporary_files(limits)};
}

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
