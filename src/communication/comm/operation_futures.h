// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/ivalue.h>

#include <lockstep/base/mutex.h>

#include "base/process_state.h"
#include "comm/call.h"

namespace lockstep::comm {

// The futures of one backend's operations. A c10 future must be completed by a thread: the first future whose
// operation does not end at once starts one that completes them all, each as soon as its operation ends, in
// any order. The thread polls, because a blocking wait for one operation would delay the others. Safe from
// any thread.
//
// A callback runs in that thread and may wait for a future of the same backend (PyTorch's PowerSGD and
// quantization hooks do). So a new thread takes the thread's place when its callback asks for a future.
//
// The destructor does not join the thread. It may hold Python's GIL (DDP's reducer drops its group with it),
// and the thread may wait for the GIL to drop a tensor that has a Python object. So the thread owns what it
// uses, completes the futures that are left, and ends.
class OperationFutures {
 public:
  OperationFutures() = default;
  ~OperationFutures();
  OperationFutures(const OperationFutures&) = delete;
  OperationFutures& operator=(const OperationFutures&) = delete;

  // For a Python interpreter that ends: a callback that waits for its GIL would then end the process. From
  // now on no future of any backend is completed. Returns when no callback runs, at the latest after `limit`.
  static void abandon_all(std::chrono::milliseconds limit);

  // Its value is `outputs`, a list of tensors. Fails with the exception of the operation's wait(), at the
  // latest after `timeout`.
  c10::intrusive_ptr<c10::ivalue::Future> future_of(OperationPtr operation, std::vector<at::Tensor> outputs,
                                                    std::chrono::milliseconds timeout);

 private:
  struct Entry {
    OperationPtr operation;
    std::vector<at::Tensor> outputs;
    c10::intrusive_ptr<c10::ivalue::Future> future;
    std::chrono::milliseconds timeout;
    std::chrono::steady_clock::time_point deadline;

    bool is_due() const;
    bool is_due_soon() const;
    void complete();
  };

  struct Queue {
    Mutex mutex;
    Condition changed;
    std::vector<Entry> entries LOCKSTEP_GUARDED_BY(mutex);
    // The number of the thread that completes the futures: 1, 2, ...; 0: none.
    std::uint64_t thread LOCKSTEP_GUARDED_BY(mutex) = 0;
    bool stop LOCKSTEP_GUARDED_BY(mutex) = false;

    void run(std::uint64_t number);
    std::vector<Entry> take_completed() LOCKSTEP_REQUIRES(mutex);
  };

  void start_thread() LOCKSTEP_REQUIRES(queue_->mutex);

  std::shared_ptr<Queue> queue_ = std::make_shared<Queue>();
  ForkMark mark_;
};

}  // namespace lockstep::comm
