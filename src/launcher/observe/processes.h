// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <sys/types.h>
#include <utility>
#include <vector>

// The processes of this user on this host that have mapped the memory of ranks, as /proc shows them.

namespace lockstep::observe {

// The memory of a rank, as a process has mapped it.
struct MappedMemory {
  std::pair<unsigned long, ino_t> file{};  // device and inode
  std::string name{};                      // of the group; of no meaning in Process::progress
  std::uint64_t address = 0;               // in the process
};

struct Process {
  int pid = 0;
  int inner_pid = 0;  // in the innermost pid namespace of the process
  int parent = 0;
  std::vector<MappedMemory> memory{};    // of ranks in groups
  std::vector<MappedMemory> progress{};  // a RankProgress for each of its ranks; both empty: no rank
};

// All processes of this user, those without such memory among them.
std::vector<Process> own_processes();

// nullopt if it is not this user's, or has ended.
std::optional<Process> own_process(int pid);

// Whether `pid` is `ancestor` or a descendant of it.
bool descends_from(const std::vector<Process>& processes, int pid, int ancestor);

// The processes that `ancestor` and those below it have started, and that belong to this user.
std::vector<Process> processes_below(int ancestor);

// The ranks among `processes`, without the programs that a rank has started.
std::vector<Process> outer_ranks(const std::vector<Process>& processes);

// The threads of a process.
std::vector<int> threads_of(int pid);

// The last number of the line of /proc/PID/status that begins with `key`, 0 without one.
int status_number(int pid, const std::string& key);

// Bytes of the process in memory, and its PSS: a page that n processes share counts as 1/n. 0 if they cannot be read.
std::int64_t resident_bytes_of(int pid);
std::int64_t proportional_bytes(int pid);

// Bytes that the process has read and written until now: from and to files, pipes and terminals, the disk, and pages of
// mapped files. Some count twice. 0 if they cannot be read.
std::uint64_t transferred_bytes(int pid);

// Whether one of its threads waits uninterruptibly in the kernel (state D in `ps`), as for a disk.
bool is_in_kernel_wait(int pid);

// The memory in /proc/PID/fd of a process that holds it open, else nullopt.
std::optional<std::string> open_file_of(int pid, const MappedMemory& memory);

// The environment with which a process started, NAME=VALUE, and its command line; empty if they cannot be read.
std::vector<std::string> variables_of(int pid);
std::vector<std::string> command_of(int pid);

// One of these variables; empty without one.
std::string variable_of(int pid, const std::string& name);

// Why this process may not look into `pid`, in a sentence with the remedy; empty if nothing forbids it.
std::string reason_not_to_look(int pid);

}  // namespace lockstep::observe
