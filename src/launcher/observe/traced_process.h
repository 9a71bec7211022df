// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <map>

namespace lockstep::observe {

// Holds all threads of another process still while it exists. The calling thread is their tracer, see ptrace(2). No
// signal is sent; one that arrives meanwhile is delivered at the end. If the constructor throws, a thread that has not
// stopped stays traced until the calling thread ends.
class TracedProcess {
 public:
  // Throws Error, with the remedy, if the system forbids it.
  explicit TracedProcess(int pid);
  ~TracedProcess();
  TracedProcess(const TracedProcess&) = delete;
  TracedProcess& operator=(const TracedProcess&) = delete;

 private:
  bool seize(int thread);
  void await_stop(int thread);
  void detach();

  int pid_;
  std::map<int, int> threads_;  // the signal that each is to get, or 0
};

}  // namespace lockstep::observe
