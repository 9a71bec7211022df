// SPDX-License-Identifier: BSD-3-Clause
#include "doctor/host_checks.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

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

}  // namespace lockstep::doctor
