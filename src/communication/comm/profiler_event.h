// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <concepts>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/record_function.h>

#include "comm/call.h"

namespace lockstep::comm {

// While this is true, every collective puts an event into LibTorch's profiler around its start, in the calling
// thread: kCallMark, then a text that is equal on all ranks that make the call. It says which asynchronous event
// of a backend belongs to which call. lockstep::Profiler sets it and replaces these events.
inline std::atomic<bool> marks_calls = false;
inline constexpr std::string_view kCallMark = "lockstep call: ";

// An asynchronous event in LibTorch's profiler, from its construction to end(), which may come from any
// thread. Costs a few nanoseconds while no profiler runs.
class ProfilerEvent {
 public:
  ProfilerEvent() = default;
  // `name` returns the name; it is called only while a profiler runs.
  template <std::invocable Name>
  explicit ProfilerEvent(const Name& name) {
    auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
    if (C10_UNLIKELY(callbacks.has_value())) begin(std::move(*callbacks), name(), {});
  }
  // One call: "shm:all_reduce", as c10d's backends name theirs.
  ProfilerEvent(const char* backend, const Call& call) {
    auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
    if (C10_UNLIKELY(callbacks.has_value())) {
      begin(std::move(*callbacks), std::string(backend) + ":" + name_in_c10d(call), shown(call).vec());
    }
  }

  void end() { event_.reset(); }

 private:
  static std::string name_in_c10d(const Call& call) {
    const bool from_any = call.kind == CallKind::recv && call.peer == kAnyRank;
    return from_any ? "recvAnySource" : std::string(name_of(call.kind));
  }

  // As c10d's backends: the inputs, or the tensors of an in-place call.
  static at::TensorList shown(const Call& call) {
    if (!call.parts.empty()) return call.parts;
    return call.inputs.empty() ? call.outputs : call.inputs;
  }

  C10_NOINLINE void begin(at::StepCallbacks&& callbacks, const std::string& name,
                          const std::vector<at::Tensor>& tensors) {
    event_ = std::make_unique<at::RecordFunction>(std::move(callbacks));
    event_->_setAsync();
    const std::vector<c10::IValue> inputs(tensors.begin(), tensors.end());
    event_->before(name, c10::ArrayRef<const c10::IValue>(inputs.data(), inputs.size()));
  }

  std::unique_ptr<at::RecordFunction> event_;
};

}  // namespace lockstep::comm
