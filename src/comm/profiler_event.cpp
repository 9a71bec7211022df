// SPDX-License-Identifier: BSD-3-Clause
#include "comm/profiler_event.h"

#include <string>
#include <vector>

namespace lockstep::comm {

void ProfilerEvent::begin(at::StepCallbacks&& callbacks, const char* backend, const Call& call) {
  event_ = std::make_unique<at::RecordFunction>(std::move(callbacks));
  event_->_setAsync();
  std::vector<c10::IValue> inputs;
  for (const auto& tensor : tensors_of(call)) inputs.emplace_back(tensor);
  event_->before(std::string(backend) + ":" + std::string(name_of(call.kind)),
                 c10::ArrayRef<const c10::IValue>(inputs.data(), inputs.size()));
}

}  // namespace lockstep::comm
