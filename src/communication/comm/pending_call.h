// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <lockstep/comm/process_group.h>
#include <lockstep/node/call_record.h>

#include "comm/call.h"
#include "comm/group_state.h"

namespace lockstep::comm {

// The state behind a Work: an issued call of a group and, until it is complete, the operation to wait for.
class PendingCall {
 public:
  // `operation` is nullptr for a call that is complete.
  PendingCall(std::shared_ptr<GroupState> group, CallRecord record, OperationPtr operation, bool on_stream)
      : group_(std::move(group)),
        record_(std::move(record)),
        operation_(std::move(operation)),
        on_stream_(on_stream),
        done_(operation_ == nullptr) {}
  ~PendingCall();
  PendingCall(const PendingCall&) = delete;
  PendingCall& operator=(const PendingCall&) = delete;

  void wait(std::chrono::milliseconds timeout);
  void then(std::function<void()> callback);
  bool is_completed() const { return (done_ && !on_stream_) || operation_->is_completed(); }
  int source_rank() const;
  const CallRecord& record() const { return record_; }
  const GroupState& group() const { return *group_; }

 private:
  void wait_on_host(std::chrono::milliseconds timeout);
  void wait_on_stream(std::chrono::milliseconds timeout);
  void await_device(std::chrono::milliseconds timeout) const;
  void wait_for_backend(std::chrono::milliseconds timeout);
  void wait_watching(std::chrono::milliseconds timeout);
  void check(const std::exception_ptr& late) const;

  std::shared_ptr<GroupState> group_;
  CallRecord record_;
  OperationPtr operation_;
  bool on_stream_ = false;  // the group's StreamWatch records its end
  bool done_ = false;
  std::vector<std::function<void()>> after_{};  // called by the wait() that ends the call
};

// Checks, numbers and records a call, and passes it to the group's backend. Throws the failure of the call as
// one of Lockstep's exceptions. By reference: a copy of fields that were just written stalls for 20 ns.
Work start(const std::shared_ptr<GroupState>& group, Call&& call);
inline Work start(const ProcessGroup& group, Call&& call) {
  return start(present_state(group, call.where), std::move(call));
}

// The same, and waits for the end. Returns the sender of a receive.
int run(const std::shared_ptr<GroupState>& group, Call&& call);
inline int run(const ProcessGroup& group, Call&& call) {
  return run(present_state(group, call.where), std::move(call));
}

}  // namespace lockstep::comm
