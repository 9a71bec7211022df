// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <sys/types.h>

#include <ATen/Parallel.h>

namespace lockstep::runtime {

// While it lives, operators of this thread and of threads that it starts use `count` threads each.
class IntraOpThreads {
 public:
  explicit IntraOpThreads(int count) : before_(at::get_num_threads()) { set(count); }
  ~IntraOpThreads() { set(before_); }
  IntraOpThreads(const IntraOpThreads&) = delete;
  IntraOpThreads& operator=(const IntraOpThreads&) = delete;

  static void set(int count) {
    if (at::get_num_threads() != count) at::set_num_threads(count);
  }

 private:
  int before_;
};

// Ends the idle OpenMP threads of this thread's last operator. They would spin for up to 15 ms on cores that
// other threads need; the next operator starts new ones in some tens of microseconds. Needs OpenMP 5.0.
void release_idle_threads();

// The same for every OpenMP library in this process, not only LibTorch's.
void release_all_idle_threads();

// Whether a child forked off this process can do without this other thread: it is idle and belongs to
// LibTorch's pthreadpool, which LibTorch makes anew in a forked child.
bool survives_a_fork(pid_t thread);

}  // namespace lockstep::runtime
