// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/record_function.h>

#include "comm/call.h"

namespace lockstep::comm {

// The event of one call in LibTorch's profiler, from its start to end(): "shm:all_reduce", as c10d's backends
// name theirs. Costs a few nanoseconds while no profiler runs. end() may come from any thread.
class ProfilerEvent {
 public:
  ProfilerEvent() = default;
  ProfilerEvent(const char* backend, const Call& call) {
    auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
    if (C10_UNLIKELY(callbacks.has_value())) begin(std::move(*callbacks), backend, call);
  }

  void end() { event_.reset(); }

 private:
  C10_NOINLINE void begin(at::StepCallbacks&& callbacks, const char* backend, const Call& call) {
    event_ = std::make_unique<at::RecordFunction>(std::move(callbacks));
    event_->_setAsync();
    std::vector<c10::IValue> inputs;
    for (const auto& tensor : tensors_of(call)) inputs.emplace_back(tensor);
    event_->before(std::string(backend) + ":" + std::string(name_of(call.kind)),
                   c10::ArrayRef<const c10::IValue>(inputs.data(), inputs.size()));
  }

  std::unique_ptr<at::RecordFunction> event_;
};

}  // namespace lockstep::comm
