// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>

#include "comm/group_state.h"

// Note [Calls that cannot be ended]
//
// A thread inside of a blocking function of MPI leaves it only when the function returns. When another rank
// dies, refuses the step or does not come, no error can be thrown there. A thread of its own watches these
// calls instead. It writes the error that the call would throw to stderr, and ends the process.
//
// mpirun ends all ranks with SIGTERM when one of them fails, and a second later with SIGKILL. Where nobody
// else handles SIGTERM, the watching thread does: it first writes the report, and it leaves waits for calls
// that can be ended some time to throw theirs.

namespace lockstep::comm {

// How the process ends.
inline constexpr int kLostExitCode = 1;

// Starts the watching thread, unless it runs.
void watch_termination();
// Whether it has seen SIGTERM.
bool is_terminated();

// While it lives, the calling thread is in a call that cannot be ended. `group` and `call` outlive it.
class UnendableCall {
 public:
  UnendableCall(const GroupState& group, const CallRecord& call, std::chrono::milliseconds timeout);
  ~UnendableCall();
  UnendableCall(const UnendableCall&) = delete;
  UnendableCall& operator=(const UnendableCall&) = delete;

  // Throws the call's error if it cannot succeed any more.
  void check() const;

 private:
  const GroupState& group_;
  const CallRecord& call_;
  std::chrono::milliseconds timeout_;
};

}  // namespace lockstep::comm
