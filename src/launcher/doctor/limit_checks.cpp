// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include "doctor/checks.h"
#include "doctor/table.h"

namespace lockstep::doctor {
namespace {

// With less the loader cannot map LibTorch.
constexpr std::uint64_t kLeastAddressSpace = std::uint64_t{1} << 30;

Finding check_file_size(const ProcessLimits& limits) {
  if (!limits.file_size) return ok("file size", "limit unlimited");
  return warning("file size",
                 fmt::format("limit {}: larger checkpoints cannot be written, and ranks share no more memory",
                             bytes_text(limits.file_size)),
                 "ulimit -f unlimited, or LimitFSIZE=infinity in the service, or fsize in limits.conf");
}

Finding check_address_space(const ProcessLimits& limits) {
  if (!limits.address_space) return ok("address space", "limit unlimited");
  const auto text = "limit " + bytes_text(limits.address_space);
  const std::string remedy = "ulimit -v unlimited, or LimitAS=infinity in the service, or as in limits.conf";
  if (*limits.address_space < kLeastAddressSpace)
    return problem("address space", text + ", and LibTorch needs about 1 GiB in each rank", remedy);
  return warning(
      "address space",
      fmt::format("{}: two ranks of this host can share {} each", text, bytes_text(limits.shareable)),
      remedy);
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
                 "set TMPDIR to a folder that this user can write to");
}

}  // namespace

Findings check_process_limits(const ProcessLimits& limits) {
  return {check_file_size(limits),      check_address_space(limits), check_stack(limits),
          check_cpu_time(limits),       check_reads(limits),         check_proc(limits),
          check_temporary_files(limits)};
}

}  // namespace lockstep::doctor
