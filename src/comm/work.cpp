// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/comm/work.h>

#include "comm/failure.h"
#include "comm/pending_call.h"

namespace lockstep {
namespace comm {

PendingCall::PendingCall(std::shared_ptr<GroupState> group, CallRecord record,
                         c10::intrusive_ptr<c10d::Work> work, std::function<void()> on_success)
    : group_(std::move(group)),
      record_(std::move(record)),
      work_(std::move(work)),
      on_success_(std::move(on_success)) {}

void PendingCall::wait(std::chrono::milliseconds timeout) {
  if (done_) return;
  try {
    if (!work_->wait(timeout)) throw std::runtime_error("it was aborted");
    if (on_success_) on_success_();
  } catch (...) {
    group_->log().set_state(record_.number, CallState::failed);
    rethrow_as_ours(std::current_exception(), group_->whoami() + ": " + record_.describe());
  }
  done_ = true;
  group_->log().set_state(record_.number, CallState::completed);
}

int PendingCall::source_rank() const {
  if (record_.kind != CallKind::recv) {
    throw ArgumentError(fmt::format("{}: only a receive has a source rank", record_.describe()));
  }
  return work_->sourceRank();
}

}  // namespace comm

void Work::wait() {
  if (call_) call_->wait(kNoTimeout);
}

void Work::wait(std::chrono::milliseconds timeout) {
  if (timeout.count() <= 0) {
    throw ArgumentError(fmt::format("Work::wait: a timeout of {} ms; it must be positive", timeout.count()));
  }
  if (call_) call_->wait(timeout);
}

bool Work::is_completed() const { return !call_ || call_->is_completed(); }

int Work::source_rank() const {
  if (!call_) throw ArgumentError("Work::source_rank: this Work refers to no call");
  return call_->source_rank();
}

const CallRecord& Work::record() const {
  if (!call_) throw ArgumentError("Work::record: this Work refers to no call");
  return call_->record();
}

}  // namespace lockstep
