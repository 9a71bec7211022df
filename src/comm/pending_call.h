// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include <lockstep/comm/c10d.h>
#include <lockstep/comm/call_record.h>

#include "comm/group_state.h"

namespace lockstep::comm {

// One issued call: c10d's Work, plus what is left to do when it has finished.
class PendingCall {
 public:
  PendingCall(std::shared_ptr<GroupState> group, CallRecord record, c10::intrusive_ptr<c10d::Work> work,
              bool on_stream, std::function<void()> on_success);
  // One that was done at once.
  PendingCall(std::shared_ptr<GroupState> group, CallRecord record)
      : group_(std::move(group)), record_(std::move(record)), done_(true) {}

  void wait(std::chrono::milliseconds timeout);
  bool is_completed() const { return (done_ && !on_stream_) || work_->isCompleted(); }
  int source_rank() const;
  const CallRecord& record() const { return record_; }
  const GroupState& group() const { return *group_; }

 private:
  void wait_on_host(std::chrono::milliseconds timeout);
  void wait_on_stream(std::chrono::milliseconds timeout);
  void await_device(std::chrono::milliseconds timeout) const;
  bool wait_for_backend(std::chrono::milliseconds timeout);
  bool wait_watching(std::chrono::milliseconds timeout);

  std::shared_ptr<GroupState> group_;
  CallRecord record_;
  c10::intrusive_ptr<c10d::Work> work_;  // null where it was done at once
  bool on_stream_ = false;               // its end is noted by the group's StreamWatch
  std::function<void()> on_success_;
  bool done_ = false;
};

}  // namespace lockstep::comm
