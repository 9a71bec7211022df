// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <utility>

#include <lockstep/base/error.h>

namespace lockstep::comm {

// While it lives, calls of this thread on any group throw ArgumentError with this text: the other ranks do not make
// them.
class WithoutCalls {
 public:
  // `reason`: a text that lives as long as this object.
  explicit WithoutCalls(const char* reason) : outer_(std::exchange(reason_, reason)) {}
  ~WithoutCalls() { reason_ = outer_; }
  WithoutCalls(const WithoutCalls&) = delete;
  WithoutCalls& operator=(const WithoutCalls&) = delete;

  static void check_call() {
    if (reason_ != nullptr) throw ArgumentError(reason_);
  }

 private:
  static inline thread_local const char* reason_ = nullptr;

  const char* outer_;
};

}  // namespace lockstep::comm
