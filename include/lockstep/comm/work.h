// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <memory>

#include <lockstep/node/call_record.h>

namespace lockstep {

namespace comm {
class PendingCall;
}

/// An asynchronous call on a process group. PyTorch: `torch.distributed.Work`.
///
/// A value: copies refer to the same call. The tensors given to the call must not be touched before wait()
/// has returned (for CUDA: before work that was queued after wait() on the same stream). Dropping a Work
/// without waiting is allowed; the call continues and keeps its tensors alive. One thread at a time.
class Work {
 public:
  /// Refers to no call; wait() returns at once.
  Work() = default;
  explicit Work(std::shared_ptr<comm::PendingCall> call) : call_(std::move(call)) {}

  /// Blocks until the results are there; afterwards does nothing. For CUDA it is the current stream that
  /// waits, not the host. The limit is the group's timeout.
  /// Throws TimeoutError, PeerLost or Error naming the call, its source line and the rank.
  void wait();
  /// The same with a limit of its own, which must be positive.
  void wait(std::chrono::milliseconds timeout);

  /// Whether wait() would return, or throw, without blocking.
  bool is_completed() const;

  /// For a receive from any rank: the rank that sent, once waited for. Throws ArgumentError for other calls.
  int source_rank() const;

  /// The call as it was recorded when issued.
  const CallRecord& record() const;

 private:
  std::shared_ptr<comm::PendingCall> call_;
};

}  // namespace lockstep
