// SPDX-License-Identifier: BSD-3-Clause
#include "comm/direct.h"

#include <utility>

#include <lockstep/device/graph_phase.h>

#include "comm/call_form.h"
#include "comm/direct_calls.h"
#include "comm/failure.h"
#include "comm/pending_call.h"

namespace lockstep::comm {
namespace {

[[noreturn]] void fail(GroupState& group, const CallRecord& record) {
  group.log().set_state(record.number, CallState::failed);
  throw_if_refused(group, record);
  rethrow_as_ours(std::current_exception(), group, record);
}

void wait_for_rest(GroupState& group, const CallRecord& record, const DirectCalls::WorkPtr& work) {
  group.remember(work);
  try {
    work->wait(kNoTimeout);
  } catch (...) {
    fail(group, record);
  }
  group.log().set_state(record.number, CallState::completed);
  group.log().set_awaited(0);
}

bool has_operation(CallKind kind) {
  return kind == CallKind::all_reduce || kind == CallKind::reduce || kind == CallKind::reduce_scatter ||
         kind == CallKind::reduce_scatter_tensor;
}

bool is_message(const DirectCall& call) { return call.kind == CallKind::send || call.kind == CallKind::recv; }

// The tensor by which the usual way describes such a call, or nullptr.
const at::Tensor* described(const DirectCall& call) {
  const bool by_input = call.kind == CallKind::all_gather || call.kind == CallKind::all_gather_into_tensor ||
                        call.kind == CallKind::gather || call.kind == CallKind::send ||
                        call.kind == CallKind::all_to_all || call.kind == CallKind::all_to_all_single;
  const auto tensors = by_input ? call.inputs : call.outputs;
  return tensors.empty() ? nullptr : &tensors.front();
}

CallDraft draft_of(const DirectCall& call, std::source_location where) {
  CallDraft draft{.kind = call.kind, .root = call.root, .where = where};
  if (const auto* tensor = described(call)) {
    draft.dtype = tensor->scalar_type();
    draft.shape = tensor->sizes();
  }
  if (has_operation(call.kind)) draft.op = call.op;
  return draft;
}

// One call by the direct way, for a turn in the log. A record is copied only where it is needed afterwards.
class Direct {
 public:
  Direct(GroupState& group, const DirectCall& call, std::source_location where)
      : group_(group), call_(call), draft_(draft_of(call, where)), turn_(group.log()) {}

  // False: there is no direct way for it, and nothing has been done.
  bool begin() {
    // The usual way says why a call in a graph cannot be.
    if (graph_phase() != GraphPhase::none) return false;
    auto* calls = group_.direct(turn_);
    if (calls == nullptr || !calls->takes(call_)) return false;
    number_ = turn_.begin(draft_);
    try {
      rest_ = calls->call_directly(call_, issued(), [this] { note(); });
    } catch (...) {
      note();
      keep_record();
      turn_.resume();
      turn_.end();
      fail(group_, record_);
    }
    turn_.resume();
    if (!noted_) turn_.note(number_, draft_);
    if (rest_ || !call_.waits) keep_record();
    if (!rest_) turn_.complete(number_);
    turn_.end();
    kept_.reset();
    return true;
  }

  // What is left to be waited for; nullptr: the call is done.
  const DirectCalls::WorkPtr& rest() const { return rest_; }
  // Where there is a rest, and of calls that do not wait.
  const CallRecord& record() const { return record_; }
  CallRecord take_record() { return std::move(record_); }

 private:
  IssuedCall issued() const {
    return {.number = number_,
            .form = is_message(call_) ? 0 : form_of(draft_.kind, draft_.dtype, draft_.shape, 0)};
  }

  // The others wait for the call's post, not for its note. Other threads may send and receive while a
  // message is waited for, or close the group.
  void note() {
    if (std::exchange(noted_, true)) return;
    turn_.note(number_, draft_);
    if (call_.waits) turn_.await(number_);
    if (!is_message(call_)) return;
    keep_record();
    kept_ = group_.keep_direct(turn_);
    turn_.pause();
  }

  // Before a pause, after which another call may lie in its place.
  void keep_record() {
    if (record_.number == 0) record_ = turn_.record(number_);
  }

  GroupState& group_;
  const DirectCall& call_;
  CallDraft draft_;
  c10::intrusive_ptr<c10d::Backend> kept_;
  CallLog::Turn turn_;
  std::uint64_t number_ = 0;
  bool noted_ = false;
  DirectCalls::WorkPtr rest_;
  CallRecord record_;
};

}  // namespace

bool call_directly(GroupState& group, const DirectCall& call, std::source_location where) {
  Direct direct(group, call, where);
  if (!direct.begin()) return false;
  if (direct.rest()) wait_for_rest(group, direct.record(), direct.rest());
  return true;
}

std::optional<Work> send_directly(const std::shared_ptr<GroupState>& group, const DirectCall& call,
                                  std::source_location where) {
  Direct direct(*group, call, where);
  if (!direct.begin()) return std::nullopt;
  if (!direct.rest()) return Work(std::make_shared<PendingCall>(group, direct.take_record()));
  group->remember(direct.rest());
  return Work(std::make_shared<PendingCall>(group, direct.take_record(), direct.rest(), false, nullptr));
}

}  // namespace lockstep::comm
