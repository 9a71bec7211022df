// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/Parallel.h>

namespace lockstep::rendezvous {

// While it lives, operators of this thread, and of threads that begin meanwhile, use so many threads each.
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

// Lets go of the threads that shared this thread's last operator. Between operators they would spin for up to
// 15 ms, on the cores that other threads of ours are about to use; the next operator makes new ones, in some
// tens of microseconds. Does nothing where the OpenMP library cannot.
void release_idle_team();

}  // namespace lockstep::rendezvous
