// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>

namespace lockstep {

// A killed process may take long to disappear: on a busy machine it waits for its turn to exit, and then the
// kernel releases its memory. Its pidfd becomes readable only after that. The kernel shows earlier that none
// of its threads will continue the program.

// The pid of the process behind a pidfd, or 0 if this process cannot see it: another pid namespace, or it has
// exited.
int process_of_pidfd(int pidfd);

// Whether the process cannot continue: each of its threads is exiting or has a pending SIGKILL. False if this
// cannot be determined.
bool is_exiting(int pid);

// The same for the thread that a line of /proc/<pid>/stat describes.
bool is_thread_exiting(const std::string& stat);

// The letter of a thread's state in proc(5), '?' if it cannot be seen.
char state_letter(int tid);

// What the kernel reports about a thread of any process: "running", "stopped by a signal", "sleeping in
// futex_wait, called from libfoo.so+0x1234". Contains only what this process may see.
std::string describe_thread(int tid);

// A process among all processes ever.
struct ProcessIdentity {
  std::string space = {};   // the boot of the kernel and the pid namespace; without colons
  int pid = 0;              // in that namespace
  std::uint64_t start = 0;  // in ticks since the boot, because pids are used again

  static ProcessIdentity own();
};

// Whether the process has ended or is_exiting(). False if this process cannot see it.
bool has_ended(const ProcessIdentity& process);

}  // namespace lockstep
