// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>
#include <string>

#include <lockstep/comm/process_group.h>

namespace lockstep::ddp {

// Ways in which ranks of one host tell each other that a backward went wrong. Between hosts they do nothing
// and know nothing.

// Of the last call that this rank issued.
std::uint64_t last_call(const ProcessGroup& group);

// The other ranks' waits for calls from `first` on end with `reason`.
void refuse_calls_from(const ProcessGroup& group, std::uint64_t first, const std::string& reason);
// Later calls are all right.
void end_refusal(const ProcessGroup& group, std::uint64_t last);

// Throws DesyncError with their reasons when other ranks refuse one of the calls that this one has made.
void throw_if_refused(const ProcessGroup& group, std::uint64_t first, std::uint64_t last,
                      const std::string& what);

// After refuse_calls_from(): the other ranks' reasons, a line each. Waits shortly for ranks that are still on
// their way.
std::string reasons_of_others(const ProcessGroup& group, std::uint64_t first);

// The rank that was the last to issue the call, or -1.
int last_to_issue(const ProcessGroup& group, std::uint64_t call);

}  // namespace lockstep::ddp
