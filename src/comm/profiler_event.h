// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <memory>

#include <ATen/record_function.h>

#include "comm/call.h"

namespace lockstep::comm {

// The event of one call in LibTorch's profiler, from its start to end(): "shm:all_reduce", as c10d's backends
// name theirs. Costs a few nanoseconds while no profiler runs. end() may come from any thread.
class ProfilerEvent {
 public:
  ProfilerEvent(const char* backend, const Call& call) {
    auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
    if (C10_UNLIKELY(callbacks.has_value())) begin(std::move(*callbacks), backend, call);
  }

  void end() { event_.reset(); }

 private:
  void begin(at::StepCallbacks&& callbacks, const char* backend, const Call& call);

  std::unique_ptr<at::RecordFunction> event_;
};

}  // namespace lockstep::comm
