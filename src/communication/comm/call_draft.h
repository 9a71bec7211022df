// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <algorithm>

#include "comm/call.h"
#include "comm/call_site.h"
#include "node/flight_recorder.h"

namespace lockstep::comm {

// What the flight recorder keeps of a call.
inline node::CallDraft draft_of(const Call& call) {
  node::CallDraft draft{.kind = call.kind,
                        .root = call.root,
                        .peer = is_message(call.kind) ? std::max(call.peer, -1) : -1,  // -1 for kAnyRank
                        .where = call.where};
  if (const auto* tensor = main_tensor(call)) {
    draft.dtype = tensor->scalar_type();
    draft.shape = tensor->sizes();
  }
  if (has_operation(call.kind)) draft.op = call.op;
  if (const auto* site = CallSite::current()) {
    draft.where = site->where();
    draft.contents = site->contents();
    draft.index = site->index();
  }
  return draft;
}

}  // namespace lockstep::comm
