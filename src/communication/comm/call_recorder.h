// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <memory>

#include <c10/util/FunctionRef.h>

#include "comm/call.h"
#include "node/flight_recorder.h"
#include "node/node_group.h"

namespace lockstep::comm {

// What the flight recorder keeps of a call.
node::CallDraft draft_of(const Call& call);

// The flight recorder of a group whose calls come through c10d, as Python's do. Safe from any thread.
class CallRecorder : public std::enable_shared_from_this<CallRecorder> {
 public:
  explicit CallRecorder(std::shared_ptr<node::NodeGroup> group);

  // Records a call that `start` starts, and its end. The rank waits for it from the moment at which its end is asked
  // for: DDP's reducer asks when it starts the call, by the future.
  OperationPtr record(const Call& call, c10::function_ref<OperationPtr()> start);

  void await(std::uint64_t number);
  void complete(std::uint64_t number);
  void fail(std::uint64_t number) { recorder_.set_state(number, CallState::failed); }

 private:
  std::shared_ptr<node::NodeGroup> group_;  // has the memory in which the recorder publishes
  node::FlightRecorder recorder_;
};

}  // namespace lockstep::comm
