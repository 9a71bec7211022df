// SPDX-License-Identifier: BSD-3-Clause
#include "comm/pending_call.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <thread>
#include <utility>

#include <ATen/record_function.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/caller_place.h"
#include "base/deadline.h"
#include "base/rank_progress.h"
#include "base/throw_error.h"
#include "comm/call_recorder.h"
#include "comm/call_site.h"
#include "comm/fingerprint.h"
#include "comm/inference_tensors.h"
#include "comm/message_order.h"
#include "comm/peer_check.h"
#include "comm/profiler_event.h"
#include "comm/unendable_call.h"
#include "graphs/graph_phase.h"

namespace lockstep::comm {

PendingCall::~PendingCall() {
  const auto watch = on_stream_ ? group_->watch() : nullptr;
  if (watch) watch->free_tensors(*operation_->stream_work());
}

void PendingCall::wait(std::chrono::milliseconds timeout) {
  if (done_) return;
  on_stream_ ? wait_on_stream(timeout) : wait_on_host(timeout);
  done_ = true;
  for (const auto& callback : std::exchange(after_, {})) callback();
}

void PendingCall::then(std::function<void()> callback) {
  done_ ? callback() : after_.push_back(std::move(callback));
}

void PendingCall::wait_on_stream(std::chrono::milliseconds timeout) {
  if (const auto watch = group_->watch()) {
    watch->throw_if_failed();
    const bool on_host = watch->waits_on_host() && graph_phase() == GraphPhase::none;
    if (on_host && timeout == kNoTimeout) timeout = group_->timeout();
  }
  try {
    const WithoutPlace record_names_it;
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
  const PhaseScope phase(Phase::communication);
  group_->log().set_awaited(record_.number);
  try {
    const WithoutPlace record_names_it;
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
    wait_watching(timeout == kNoTimeout ? group_->timeout() : timeout);
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

namespace {

using node::CallDraft;

// For messages about a call that has no number yet.
CallRecord record_of(const Call& call) {
  const auto draft = draft_of(call);
  return {.kind = call.kind,
          .dtype = draft.dtype,
          .shape = {draft.shape.begin(), draft.shape.end()},
          .op = draft.op,
          .root = call.root,
          .where = draft.where,
          .contents = draft.contents,
          .index = draft.index};
}

// A call that does not end on a device's stream would run during the capture of a graph, but in no replay.
void refuse_to_be_captured(const GroupState& group, const Call& call) {
  if (graph_phase() == GraphPhase::none) return;
  refuse_in_graph(fmt::format("{} over {}", record_of(call).describe(), group.backend_name()),
                  "make it outside of the step, or use NCCL and tensors on the GPU");
}

// "ranks 0, 2, ..., 30" or all numbers if their distances differ.
std::string text_of(const std::vector<int>& ranks) {
  const auto off_step = [&](int one, int next) { return next - one != ranks[1] - ranks[0]; };
  if (ranks.size() < 4 || std::ranges::adjacent_find(ranks, off_step) != ranks.end())
    return fmt::format("ranks {}", fmt::join(ranks, ", "));
  return fmt::format("ranks {}, {}, ..., {}", ranks[0], ranks[1], ranks.back());
}

std::string call_mark(const GroupState& group, const Call& call, std::uint64_t sequence) {
  const auto& ranks = group.info().global_ranks;
  return fmt::format("{}{} #{} of group {}{}", kCallMark, name_of(call.kind), sequence, group.info().name,
                     ranks.empty() ? "" : fmt::format(" ({})", text_of(ranks)));
}

// One call from its number to the backend's result, under one lock of the flight recorder, which it may
// pause.
class Issue {
 public:
  // Gives the call its number.
  Issue(GroupState& group, Call& call)
      : group_(group), call_(call), draft_(draft_of(call)), recorder_lock_(group.log()) {}

  // The operation to wait for; nullptr if the call is complete.
  OperationPtr start() {
    auto* const calls = group_.calls(recorder_lock_);
    if (calls == nullptr) {
      recorder_lock_.end();
      group_.throw_closed(record_of(call_));
    }
    call_.number = recorder_lock_.begin(draft_);
    try {
      const WithoutPlace record_names_it;
      std::string mark;
      if (C10_UNLIKELY(marks_calls.load(std::memory_order_relaxed)) && !is_message(call_.kind))
        mark = call_mark(group_, call_, recorder_lock_.next_collective());
      if (group_.info().check_calls) compare();
      std::optional<at::RecordFunction> marked;
      if (!mark.empty()) marked.emplace().before(mark);
      return finish(calls->start(call_, [this](CallStage stage) { report(stage); }));
    } catch (...) {
      in_call_.reset();
      write();
      keep_record();
      recorder_lock_.resume();
      recorder_lock_.end();
      fail();
    }
  }

  // Valid if there is an operation to wait for, and for calls that do not block.
  const CallRecord& record() const { return record_; }
  bool ends_on_stream() const { return ends_on_stream_; }

 private:
  // Other ranks wait for the call's descriptor, not for its record.
  void report(CallStage stage) {
    write();
    if (stage == CallStage::posted || kept_) return;
    // Another call may overwrite the record, and another thread may close the group.
    keep_record();
    kept_ = group_.keep_calls(recorder_lock_);
    recorder_lock_.pause();
    if (stage == CallStage::cannot_end) in_call_.emplace(group_, record_, call_.timeout);
  }

  void write() {
    if (std::exchange(is_written_, true)) return;
    recorder_lock_.note(call_.number, draft_);
    if (call_.blocking) recorder_lock_.await(call_.number);
  }

  // A copy costs memory, so a call that completes immediately has none.
  void keep_record() {
    if (record_.number == 0) record_ = recorder_lock_.record(call_.number);
  }

  void compare() {
    report(CallStage::may_block);
    compare_calls(*group_.backend(), group_, call_, record_);
  }

  OperationPtr finish(OperationPtr operation) {
    in_call_.reset();
    recorder_lock_.resume();
    write();
    if (operation || !call_.blocking) keep_record();
    if (!operation) recorder_lock_.complete(call_.number);
    recorder_lock_.end();
    if (operation) watch(operation);
    return operation;
  }

  void watch(const OperationPtr& operation) {
    const auto watch = group_.watch();
    const auto work = watch ? operation->stream_work() : nullptr;
    ends_on_stream_ = work != nullptr && watch->add(record_, work);
    if (ends_on_stream_) return;
    refuse_to_be_captured(group_, call_);
    if (!operation->is_completed()) group_.remember(operation);
  }

  [[noreturn]] void fail() {
    group_.log().set_state(call_.number, CallState::failed);
    rethrow_as_ours(std::current_exception(), group_, record_);
  }

  GroupState& group_;
  Call& call_;
  CallDraft draft_;
  std::shared_ptr<CallBackend> kept_;
  node::FlightRecorder::RecorderLock recorder_lock_;
  CallRecord record_;
  std::optional<UnendableCall> in_call_;
  bool is_written_ = false;
  bool ends_on_stream_ = false;
};

void check(GroupState& group, const Call& call) {
  group.rules().check(call);
  const auto watch = group.watch();
  if (watch == nullptr || call.kind == CallKind::barrier) {
    refuse_to_be_captured(group, call);
  }
  if (watch != nullptr) watch->throw_if_failed();
}

}  // namespace

Work start(const std::shared_ptr<GroupState>& group, Call&& call) {
  WithoutCalls::check_call();
  check(*group, call);
  const MessageOrder order(call);
  const InferenceTensors ordinary(call);
  Issue issue(*group, call);
  auto operation = order.finish(issue.start());
  return Work(
      std::make_shared<PendingCall>(group, issue.record(), std::move(operation), issue.ends_on_stream()));
}

int run(const std::shared_ptr<GroupState>& group, Call&& call) {
  WithoutCalls::check_call();
  call.blocking = true;
  check(*group, call);
  const MessageOrder order(call);
  const InferenceTensors ordinary(call);
  Issue issue(*group, call);
  const auto operation = order.finish(issue.start());
  if (!operation) return call.peer;
  PendingCall(group, issue.record(), operation, issue.ends_on_stream()).wait(kNoTimeout);
  const bool from_any = call.kind == CallKind::recv && call.peer == kAnyRank;
  return from_any ? operation->source_rank() : call.peer;
}

}  // namespace lockstep::comm

namespace lockstep {

void Work::wait() const {
  if (call_) call_->wait(kNoTimeout);
}

void Work::wait(Timeout timeout) const {
  if (call_) call_->wait(timeout);
}

Work Work::then(std::function<void()> callback) const {
  call_ ? call_->then(std::move(callback)) : callback();
  return *this;
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
