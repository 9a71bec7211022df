// SPDX-License-Identifier: BSD-3-Clause
#include "comm/direct.h"

#include <utility>

#include <lockstep/device/graph_phase.h>

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

// No value: not by the direct way, and nothing has been done. nullptr: done. Else what is left, and `record`
// of the call; that also of calls that do not wait.
std::optional<DirectCalls::WorkPtr> begin(GroupState& group, const DirectCall& call,
                                          std::source_location where, CallRecord& record) {
  // The usual way says why a call in a graph cannot be.
  if (graph_phase() != GraphPhase::none) return std::nullopt;
  c10::intrusive_ptr<c10d::Backend> kept;
  CallLog::Turn turn(group.log());
  auto* calls = group.direct(turn);
  if (calls == nullptr || !calls->takes(call)) return std::nullopt;
  const auto number = turn.begin(draft_of(call, where));
  // The others wait for the call's post, and nobody for its note.
  bool noted = false;
  const auto note = [&] {
    if (std::exchange(noted, true)) return;
    turn.note(number);
    if (!is_message(call)) return;
    // Other threads may send and receive meanwhile, or close the group.
    kept = group.keep_direct(turn);
    turn.pause();
  };
  DirectCalls::WorkPtr rest;
  try {
    rest = calls->call_directly(call, number, note);
  } catch (...) {
    note();
    turn.resume();
    record = turn.record(number);
    turn.end();
    fail(group, record);
  }
  if (!noted) turn.note(number);
  turn.resume();
  if (rest || !call.waits) record = turn.record(number);
  if (!rest) turn.complete(number);
  return rest;
}

}  // namespace

bool call_directly(GroupState& group, const DirectCall& call, std::source_location where) {
  CallRecord record;
  const auto rest = begin(group, call, where, record);
  if (!rest) return false;
  if (*rest) wait_for_rest(group, record, *rest);
  return true;
}

std::optional<Work> send_directly(const std::shared_ptr<GroupState>& group, const DirectCall& call,
                                  std::source_location where) {
  CallRecord record;
  auto rest = begin(*group, call, where, record);
  if (!rest) return std::nullopt;
  if (!*rest) return Work(std::make_shared<PendingCall>(group, std::move(record)));
  group->log().set_awaited(0);
  group->remember(*rest);
  return Work(std::make_shared<PendingCall>(group, std::move(record), std::move(*rest), false, nullptr));
}

}  // namespace lockstep::comm
