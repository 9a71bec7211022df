// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

// The host name of gethostname(2).
std::string host_name();

// Equal in two processes exactly when they run under the same kernel boot: the kernel's boot id and the
// network namespace, so that two containers with networks of their own count as two hosts.
std::string host_identity();

// LOCKSTEP_HOST_ID, which names the host by hand; else host_identity(). Ranks with equal values share memory.
std::string memory_identity();

// The logical CPUs of the calling thread's affinity mask, ascending; at least one.
std::vector<int> affinity_cpus();

// Number of cores that this process can use: the minimum of its affinity mask and the CPU quotas of its
// cgroup and those above it (versions 1 and 2); at least 1.
int usable_cores();

// The path of this process's program.
std::filesystem::path own_program();

// The first line of a file; empty if there is none.
std::string first_line(const std::filesystem::path& file);

// The number with which a file begins.
template <typename Number>
std::optional<Number> number_in(const std::filesystem::path& file) {
  Number value{};
  std::ifstream stream(file);
  return stream >> value ? std::optional(value) : std::nullopt;
}

// The bytes behind "MemTotal:" in "MemTotal: 123 kB" or "Node 0 MemTotal: 123 kB".
std::optional<std::uint64_t> meminfo_bytes(const std::filesystem::path& file, const std::string& key);

// The limits of a process's control groups, versions 1 and 2 and both at once. A limit of any group between
// the process's own and the mount counts, as it does for the kernel.
class Cgroups {
 public:
  // `process`: the process's folder in /proc, with the files cgroup and mountinfo. Unreadable values count as
  // no limit.
  explicit Cgroups(const std::filesystem::path& process = "/proc/self");

  // CPU time that the process may use, in cores; nullopt without a limit.
  std::optional<double> cpu_quota() const;
  // Bytes.
  std::optional<std::uint64_t> memory_limit() const;
  // Bytes left under the tightest limit; nullopt without a limit.
  std::optional<std::uint64_t> memory_left() const;
  // Processes and threads.
  std::optional<std::uint64_t> pids_limit() const;

 private:
  // One mounted hierarchy of groups.
  struct Hierarchy {
    bool unified = false;                        // version 2
    std::vector<std::string> controllers = {};   // version 1
    std::vector<std::filesystem::path> folders;  // the process's group and those above it
  };

  std::vector<const Hierarchy*> with(const std::string& controller) const;

  std::vector<Hierarchy> hierarchies_;
};

}  // namespace lockstep
