// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <exception>
#include <thread>

#include <lockstep/base/error.h>
#include <lockstep/comm/work.h>

#include "base/deadline.h"
#include "base/throw_error.h"
#include "comm/peer_check.h"
#include "comm/pending_call.h"
#include "graphs/graph_phase.h"

namespace lockstep {
namespace comm {

PendingCall::~PendingCall() {
  const auto watch = on_stream_ ? group_->watch() : nullptr;
  if (watch) watch->free_tensors(*operation_->stream_work());
}

void PendingCall::wait(std::chrono::milliseconds timeout) {
  if (done_) return;
  on_stream_ ? wait_on_stream(timeout) : wait_on_host(timeout);
  done_ = true;
}

void PendingCall::wait_on_stream(std::chrono::milliseconds timeout) {
  if (const auto watch = group_->watch()) {
    watch->throw_if_failed();
    const bool on_host = watch->waits_on_host() && graph_phase() == GraphPhase::none;
    if (on_host && timeout == kNoTimeout) timeout = group_->info().timeout;
  }
  try {
    if (timeout != kNoTimeout) await_device(timeout);
    operation_->wait(kNoTimeout);
  } catch (...) {
    if (const auto watch = group_->watch()) watch->throw_if_failed();
    rethrow_as_ours(std::current_exception(), *group_, record_);
  }
}

// c10d's own wait with a limit aborts the communicator at the limit, and with it all other calls.
void PendingCall::await_device(std::chrono::milliseconds timeout) const {
  refuse_in_graph("a wait with a limit", "wait without one");
  const Deadline deadline(timeout);
  PeerCheckTimer timer;
  while (!operation_->is_completed()) {
    const bool is_late = deadline.expired();
    if (is_late || timer.is_due()) check(late_error(is_late, timeout, " on the device"));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  // Works of some releases do not say that they were aborted.
  if (const auto watch = group_->watch()) watch->throw_if_failed();
}

void PendingCall::wait_on_host(std::chrono::milliseconds timeout) {
  group_->log().set_awaited(record_.number);
  try {
    wait_for_backend(timeout);
  } catch (...) {
    group_->log().set_state(record_.number, CallState::failed);
    rethrow_as_ours(std::current_exception(), *group_, record_);
  }
  group_->log().set_state(record_.number, CallState::completed);
  group_->log().set_awaited(0);
}

void PendingCall::wait_for_backend(std::chrono::milliseconds timeout) {
  const bool watched = group_->node_group() != nullptr && !group_->info().traits.notices_death;
  // Gloo ends a send or receive whose wait has timed out, and itself detects the loss of the other rank.
  if (watched && !is_message(record_.kind)) {
    wait_watching(timeout == kNoTimeout ? group_->info().timeout : timeout);
  } else {
    operation_->wait(timeout);
  }
}

// Waits in slices and checks the other ranks between them.
void PendingCall::wait_watching(std::chrono::milliseconds timeout) {
  const Deadline deadline(timeout);
  while (true) {
    const auto slice = std::min(kPeerCheckPeriod, deadline.remaining());
    std::exception_ptr failure;
    try {
      return operation_->wait(std::max(std::chrono::milliseconds(1), slice));
    } catch (const std::exception&) {
      failure = std::current_exception();
    }
    check(deadline.expired() ? failure : nullptr);
    // The call may have ended just after the slice: then this returns, or throws the actual failure.
    if (operation_->is_completed()) return operation_->wait(kNoTimeout);
  }
}

void PendingCall::check(const std::exception_ptr& late) const {
  const auto others = group_->node_group();
  NodeWait{others.get(), [this] { return operation_->is_completed(); }, late}.check();
}

int PendingCall::source_rank() const {
  if (record_.kind != CallKind::recv) {
    throw_error<ArgumentError>("{}: only a receive has a source rank", record_.describe());
  }
  return operation_ == nullptr ? -1 : operation_->source_rank();
}

}  // namespace comm

void Work::wait() {
  if (call_) call_->wait(kNoTimeout);
}

void Work::wait(std::chrono::milliseconds timeout) {
  if (timeout.count() <= 0) {
    throw_error<ArgumentError>("Work::wait: a timeout of {} ms; it must be positive", timeout.count());
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
