// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

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
