// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>

#include <ATen/core/Generator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace lockstep::device {

// While it lives, operators that this thread calls on CPU tensors without a generator draw from this one.
//
// LibTorch's default generator is one for the whole process. But random operators take a generator, and a
// thread can have a dispatch key of its own that comes before all others: under it such operators are given
// ours, and all the rest falls through at no cost.
class ThreadGenerator {
 public:
  explicit ThreadGenerator(at::Generator generator);
  ~ThreadGenerator();
  ThreadGenerator(const ThreadGenerator&) = delete;
  ThreadGenerator& operator=(const ThreadGenerator&) = delete;

  // Before the threads begin: what is done once for the process, while nobody calls operators that draw.
  static void prepare();

  // This thread's, if it has one.
  static std::optional<at::Generator> current();

 private:
  c10::impl::IncludeDispatchKeyGuard key_;
};

}  // namespace lockstep::device
