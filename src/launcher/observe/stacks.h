// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

namespace lockstep::observe {

// A thread of another process, where it was at one moment.
struct ThreadStack {
  int thread = 0;
  std::string name{};  // of the thread, as the kernel has it
  std::vector<std::string>
      frames{};  // innermost first: "wait_for_data(Loader&) at train.cpp:40", "poll in libc.so.6"
};

// The stacks of all threads of a process of this user, stopped or not. The process stands still for a moment, and
// continues as it was: a stopped one stays stopped. Throws Error where the system does not let this process trace it, or
// without elfutils, with the remedy.
std::vector<ThreadStack> stacks_of(int pid);

}  // namespace lockstep::observe
