// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <pthread.h>
#include <string>
#include <unistd.h>

#include <lockstep/base/error.h>

namespace lockstep {

// Knows whether this process is a forked child of the one that made the object: the child has its memory, but
// neither its threads nor its place among the ranks. A look costs no system call.
class ForkMark {
 public:
  ForkMark() : forks_(count()) {}

  bool is_in_child() const { return forks.load(std::memory_order_relaxed) != forks_; }
  // Throws Error in a child.
  void refuse_wait_in_child() const {
    if (!is_in_child()) return;
    throw Error("process " + std::to_string(::getpid()) +
                " was forked off this rank and must not wait for its calls");
  }

 private:
  static int count() {
    [[maybe_unused]] static const int registered = ::pthread_atfork(nullptr, nullptr, [] { ++forks; });
    return forks;
  }

  static inline std::atomic<int> forks{0};  // that made this process, from the first mark on
  int forks_;
};

}  // namespace lockstep
