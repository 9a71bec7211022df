// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/core/Device.h>

namespace lockstep::graphs {

// The operators of one run of a step, with the arguments that are no tensors: what a graph would freeze. Two
// runs with different traces cannot be one graph.
class OperatorTrace {
 public:
  // `device`: where tensors have to be.
  explicit OperatorTrace(c10::Device device) : device_(device) {}

  void add(const at::RecordFunction& function);

  // What in this run cannot be captured, e.g. "aten::item waits for the device"; else "".
  const std::string& obstacle() const { return obstacle_; }
  std::size_t size() const { return calls_.size(); }
  // The first difference of this run, an earlier one, from `later`, in words; else "".
  std::string difference(const OperatorTrace& later) const;

 private:
  std::string arguments_of(const at::RecordFunction& function);
  void add_argument(std::string& text, const c10::IValue& value, const char* name);
  void add_tensor(std::string& text, const at::Tensor& tensor, const char* name);
  void note(std::string text);

  c10::Device device_;
  std::mutex mutex_;  // backward runs in autograd's threads
  std::vector<std::string> calls_;
  std::string obstacle_;
};

// While it lives, operators of this thread, and of backward passes that it starts, are added to `trace`.
// Within a GraphPhaseScope, and one in it.
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
