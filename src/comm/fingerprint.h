// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

#include "comm/call.h"
#include "comm/group_state.h"

namespace lockstep::comm {

// What must be equal on all ranks that make one collective. The fingerprint and compare_calls() read this and
// nothing else, so that they find the same differences.
struct CallSignature {
  std::uint64_t kind = 0;
  std::uint64_t dtype = 0;
  std::uint64_t op = 0;      // of the reducing kinds
  std::uint64_t root = 0;    // of the rooted kinds
  std::uint64_t shape = 0;   // a hash, if the kind requires equal shapes
  std::uint64_t layout = 0;  // a hash of the strides, in the same kinds; 0: contiguous

  bool operator==(const CallSignature&) const = default;
};

CallSignature signature_of(const Call& call);

// The signature in one number. Ranks with different fingerprints make different calls. 0 for messages.
std::uint64_t fingerprint(const Call& call);

// Before a collective: exchanges the signatures of the call over the backend, and in kinds with uneven shapes
// the bytes for each pair of ranks. Throws DesyncError on all ranks when they differ, which says in what.
// Blocks until all ranks have arrived. For debugging: it costs one all-gather per call.
void compare_calls(c10d::Backend& backend, const GroupState& group, const Call& call,
                   const CallRecord& record);

}  // namespace lockstep::comm
