// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace lockstep::rendezvous {

// While one lives, LibTorch's own log is silent: c10d's store logs each broken connection with a stack trace
// of up to 32 lines, which our errors name in one. Does nothing if LOCKSTEP_LOG_LEVEL is debug or
// TORCH_CPP_LOG_LEVEL is set. Safe from any thread.
class QuietC10d {
 public:
  QuietC10d();
  ~QuietC10d();
  QuietC10d(const QuietC10d&) = delete;
  QuietC10d& operator=(const QuietC10d&) = delete;

 private:
  bool is_on_;
};

}  // namespace lockstep::rendezvous
