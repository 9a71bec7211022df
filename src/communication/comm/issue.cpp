// SPDX-License-Identifier: BSD-3-Clause
#include "comm/issue.h"

#include <optional>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "comm/fingerprint.h"
#include "comm/inference_tensors.h"
#include "comm/message_order.h"
#include "comm/peer_check.h"
#include "comm/pending_call.h"
#include "comm/unendable_call.h"
#include "graphs/graph_phase.h"

namespace lockstep::comm {
namespace {

using node::CallDraft;

CallDraft draft_of(const Call& call) {
  CallDraft draft{.kind = call.kind, .root = call.root, .where = call.where};
  if (const auto* tensor = main_tensor(call)) {
    draft.dtype = tensor->scalar_type();
    draft.shape = tensor->sizes();
  }
  if (has_operation(call.kind)) draft.op = call.op;
  return draft;
}

// For messages about a call that has no number yet.
CallRecord record_of(const Call& call) {
  const auto draft = draft_of(call);
  return {.kind = call.kind,
          .dtype = draft.dtype,
          .shape = {draft.shape.begin(), draft.shape.end()},
          .op = draft.op,
          .root = call.root,
          .where = call.where};
}

// A call that does not end on a device's stream would run during the capture of a graph, but in no replay.
void refuse_to_be_captured(const GroupState& group, const Call& call) {
  if (graph_phase() == GraphPhase::none) return;
  refuse_in_graph(fmt::format("{} over {}", record_of(call).describe(), group.backend_name()),
                  "make it outside of the step, or use NCCL and tensors on the GPU");
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
      if (group_.info().check_calls) compare();
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
  check(*group, call);
  const MessageOrder order(call);
  const InferenceTensors ordinary(call);
  Issue issue(*group, call);
  auto operation = order.finish(issue.start());
  return Work(
      std::make_shared<PendingCall>(group, issue.record(), std::move(operation), issue.ends_on_stream()));
}

int run(const std::shared_ptr<GroupState>& group, Call&& call) {
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
