// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <string>
#include <vector>

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/core/Device.h>

#include <lockstep/base/mutex.h>

namespace lockstep::graphs {

// The operators of one run of a step with their non-tensor arguments, which a graph would freeze. Two runs
// with different traces cannot share a graph.
class OperatorTrace {
 public:
  // Tensors on other devices are errors.
  explicit OperatorTrace(c10::Device device) : device_(device) {}

  void add(const at::RecordFunction& function);

  // Why this run cannot be captured, e.g. "aten::item synchronizes with the device"; empty if it can.
  std::string error() const {
    const MutexLock lock(mutex_);
    return error_;
  }
  // Describes the first difference between this run and a later one; empty when they are equal.
  std::string difference(const OperatorTrace& later) const;

 private:
  std::string arguments_of(const at::RecordFunction& function) LOCKSTEP_REQUIRES(mutex_);
  void add_argument(std::string& text, const c10::IValue& value, const char* name) LOCKSTEP_REQUIRES(mutex_);
  void add_tensor(std::string& text, const at::Tensor& tensor, const char* name) LOCKSTEP_REQUIRES(mutex_);
  void set_error(std::string text) LOCKSTEP_REQUIRES(mutex_);

  c10::Device device_;
  mutable Mutex mutex_;  // backward runs in autograd's threads
  std::vector<std::string> calls_ LOCKSTEP_GUARDED_BY(mutex_);
  std::string error_ LOCKSTEP_GUARDED_BY(mutex_);
};

// During its lifetime, adds the operators of this thread and of its backward passes to `trace`. Requires a
// GraphPhaseScope; one per scope.
class Tracing {
 public:
  explicit Tracing(OperatorTrace& trace);
  ~Tracing();
  Tracing(const Tracing&) = delete;
  Tracing& operator=(const Tracing&) = delete;

 private:
  at::CallbackHandle handle_;
};

}  // namespace lockstep::graphs
