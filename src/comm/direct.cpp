// SPDX-License-Identifier: BSD-3-Clause
#include "comm/direct.h"

#include <lockstep/device/graph_phase.h>

#include "comm/direct_calls.h"
#include "comm/failure.h"

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

// The backend's direct way, where the call may go it: of a call in a graph the usual way says why it cannot
// be.
DirectCalls* way_of(const GroupState& group, const CallLog::Turn& turn) {
  return graph_phase() == GraphPhase::none ? group.direct(turn) : nullptr;
}

// `call` makes the call of the number that it is given.
template <class Call>
void make(GroupState& group, CallLog::Turn& turn, const CallDraft& draft, const Call& call) {
  const auto number = turn.begin(draft);
  DirectCalls::WorkPtr rest;
  try {
    rest = call(number);
  } catch (...) {
    const auto record = turn.record(number);
    turn.end();
    fail(group, record);
  }
  if (!rest) {
    turn.complete(number);
    return;
  }
  const auto record = turn.record(number);
  turn.end();
  wait_for_rest(group, record, rest);
}

}  // namespace

bool all_reduce_directly(GroupState& group, const at::Tensor& tensor, ReduceOp op,
                         std::source_location where) {
  if (graph_phase() != GraphPhase::none) return false;  // the other way refuses it
  CallLog::Turn turn(group.log());
  auto* calls = way_of(group, turn);
  if (calls == nullptr || !calls->takes(tensor, op)) return false;
  const CallDraft draft{.kind = CallKind::all_reduce,
                        .dtype = tensor.scalar_type(),
                        .shape = tensor.sizes(),
                        .op = op,
                        .where = where};
  make(group, turn, draft,
       [&](std::uint64_t number) { return calls->all_reduce_directly(tensor, op, number); });
  return true;
}

bool barrier_directly(GroupState& group, std::source_location where) {
  if (graph_phase() != GraphPhase::none) return false;  // the other way refuses it
  CallLog::Turn turn(group.log());
  auto* calls = way_of(group, turn);
  if (calls == nullptr) return false;
  make(group, turn, {.kind = CallKind::barrier, .where = where},
       [&](std::uint64_t number) { return calls->barrier_directly(number); });
  return true;
}

}  // namespace lockstep::comm
