// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <exception>
#include <string>

namespace lockstep::comm {

// Throws `cause` again as the member of our error family that fits: TimeoutError, PeerLost, ArgumentError
// or Error. `what` says who did which call, e.g. "rank 1 of 2 (group default, gloo): all_reduce #3 ...".
[[noreturn]] void rethrow_as_ours(const std::exception_ptr& cause, const std::string& what);

}  // namespace lockstep::comm
