// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include <lockstep/node/call_record.h>

namespace lockstep {

namespace comm {
class PendingCall;
}

/// An asynchronous call on a process group. PyTorch: `torch.distributed.Work`.
///
/// Copies refer to the same call. The tensors of the call must not be read or written before wait() has
/// returned (for CUDA: before work that was queued after wait() on the same stream). Dropping a Work without
/// waiting is allowed; the call continues and keeps its tensors alive. One thread at a time.
class Work {
 public:
  /// Refers to no call; wait() returns at once.
  Work() = default;
  explicit Work(std::shared_ptr<comm::PendingCall> call) : call_(std::move(call)) {}

  /// Blocks until the results are available, for at most the group's timeout; later calls do nothing. For
  /// CUDA, the current stream waits instead of the host. Throws TimeoutError, PeerLost or Error naming the
  /// call, its source line and the rank.
  void wait();
  /// The same with `timeout` as the limit, which must be positive.
  void wait(std::chrono::milliseconds timeout);

  /// Whether wait() would return, or throw, without blocking.
  bool is_completed() const;

  /// The sending rank of a receive from any rank, after wait(). Throws ArgumentError for other calls.
  int source_rank() const;

  /// The call as it was recorded when issued.
  const CallRecord& record() const;

 private:
  std::shared_ptr<comm::PendingCall> call_;
};

/// An asynchronous call that carries strings or bytes, e.g. all_gather_object_async(). The call itself
/// exchanges the lengths, so computation can go on until all ranks have made it. wait() carries the objects
/// and is a blocking collective: all ranks make it, in the same order among the group's other calls, or none
/// does. Copies have results of their own, so only one of them may wait.
template <typename Objects>
class ObjectWork {
 public:
  ObjectWork(Work lengths, std::function<Objects()> receive)
      : lengths_(std::move(lengths)), receive_(std::move(receive)) {}

  /// Returns the objects, later calls the same ones. Throws as Work::wait().
  const Objects& wait() {
    if (!objects_) {
      lengths_.wait();
      objects_ = receive_();
    }
    return *objects_;
  }

  /// Whether all ranks have made the call, so that wait() only waits for ranks that do not wait yet.
  bool is_completed() const { return lengths_.is_completed(); }

 private:
  Work lengths_;
  std::function<Objects()> receive_;
  std::optional<Objects> objects_;
};

}  // namespace lockstep
