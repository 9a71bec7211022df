// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <optional>

#include <ATen/core/Generator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

// What operators that a thread calls get where the call has none: a random generator and, by the public
// DeviceContext, a device.
namespace lockstep::intercept {

// While it lives, operators that this thread calls on CPU tensors without a generator use this one.
// LibTorch's default generator is shared by the process.
class ThreadGenerator {
 public:
  explicit ThreadGenerator(at::Generator generator);
  ~ThreadGenerator();
  ThreadGenerator(const ThreadGenerator&) = delete;
  ThreadGenerator& operator=(const ThreadGenerator&) = delete;

  // Registers the kernels, once for the process. Call it before the threads start, while no thread calls
  // random operators.
  static void register_kernels();

  // The calling thread's generator, if it has one.
  static std::optional<at::Generator> current();

 private:
  c10::impl::IncludeDispatchKeyGuard key_;
};

}  // namespace lockstep::intercept
