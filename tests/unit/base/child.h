// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <csignal>
#include <exception>
#include <iostream>
#include <sys/wait.h>
#include <unistd.h>

namespace lockstep::testing {

// A fork of the test, which shares what was mapped and open before. Ends when `body` returns, or by the
// alarm.
class Child {
 public:
  template <class Body>
  explicit Child(Body body) : pid_(::fork()) {
    if (pid_ != 0) return;
    ::alarm(60);
    bool passed = false;
    try {
      passed = body();
    } catch (const std::exception& error) {
      std::cerr << "in the child: " << error.what() << std::endl;
    }
    ::_exit(passed ? 0 : 1);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  // Whether `body` returned true.
  bool passed() {
    if (pid_ <= 0) return false;
    int status = 0;
    const pid_t ended = ::waitpid(pid_, &status, 0);
    pid_ = 0;
    return ended > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

 private:
  pid_t pid_ = -1;
};

}  // namespace lockstep::testing
