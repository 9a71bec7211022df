// SPDX-License-Identifier: BSD-3-Clause
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>

#include <lockstep/base/error.h>

#include "base/cgroup.h"
#include "base/shared_memory.h"
#include "doctor/facts.h"
#include "machine/topology.h"

namespace lockstep::doctor {
namespace {

namespace fs = std::filesystem;

std::optional<std::uint64_t> limit_of(int resource) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return std::nullopt;
  }
  return limit.rlim_cur;
}

int entries_in(const fs::path& folder) {
  std::error_code absent;
  const fs::directory_iterator entries(folder, absent);
  return absent ? 0 : static_cast<int>(std::distance(begin(entries), end(entries)));
}

}  // namespace

SharedMemoryFacts try_shared_memory() {
  constexpr std::size_t page = 4096;
  SharedMemoryFacts facts;
  struct statvfs status {};
  if (::statvfs("/dev/shm", &status) == 0) {
    facts.dev_shm_total = std::uint64_t{status.f_blocks} * status.f_frsize;
    facts.dev_shm_free = std::uint64_t{status.f_bavail} * status.f_frsize;
  }
  try {
    const auto memory = SharedMemory::create("lockstep-doctor", page);
    memory.commit(0, page, "a check");
  } catch (const Error& error) {
    facts.memfd_error = error.what();
  }
  return facts;
}

Clock read_clock() {
  timex state{};
  const int outcome = ::adjtimex(&state);
  if (outcome < 0) return {.error = errno_text(errno)};
  return {.synchronized = outcome != TIME_ERROR && (state.status & STA_UNSYNC) == 0};
}

Limits read_limits() {
  return {.open_files = limit_of(RLIMIT_NOFILE),
          .processes = limit_of(RLIMIT_NPROC),
          .locked_memory = limit_of(RLIMIT_MEMLOCK),
          .pids = Cgroups().pids_limit(),
          .core_size = limit_of(RLIMIT_CORE),
          .core_pattern = machine::first_line("/proc/sys/kernel/core_pattern"),
          .has_rdma = entries_in("/sys/class/infiniband") > 0};
}

GpuDriver read_gpu_driver() {
  return {.version = machine::first_line("/proc/driver/nvidia/version"),
          .devices = entries_in("/proc/driver/nvidia/gpus")};
}

}  // namespace lockstep::doctor
