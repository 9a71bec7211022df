// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <deque>
#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include <lockstep/base/mutex.h>

#include "base/process_state.h"
#include "comm/call.h"
#include "comm/profiler_event.h"

namespace lockstep::backends {

// A copy of a call that keeps its tensors.
class KeptCall {
 public:
  explicit KeptCall(const comm::Call& call)
      : call_(call), inputs_(call.inputs.vec()), outputs_(call.outputs.vec()) {
    call_.inputs = inputs_;
    call_.outputs = outputs_;
  }
  KeptCall(const KeptCall&) = delete;
  KeptCall& operator=(const KeptCall&) = delete;
  const comm::Call& call() const { return call_; }

 private:
  comm::Call call_;
  std::vector<at::Tensor> inputs_, outputs_;
};

// A call that CallQueue makes on its thread.
class QueuedCall : public comm::Operation {
 public:
  explicit QueuedCall(const comm::Call& call) : kept_(call), event_("hierarchical", call) {}

  // On the thread of the queue.
  void run();

  // Until run() has ended. The call has a limit of its own, so it ends without one here.
  void wait(std::chrono::milliseconds timeout) override { await_run(timeout, timeout); }
  void end_wait(std::chrono::milliseconds timeout) override {
    await_run(std::chrono::milliseconds(0), timeout);
  }
  bool is_completed() override;

 protected:
  // Makes the call, or throws.
  virtual void make() = 0;
  const comm::Call& call() const { return kept_.call(); }
  // The event in the profiler that began with the call.
  void end_event() { event_.end(); }
  // The last part of a wait of `whole`. Throws what make() has thrown.
  void await_run(std::chrono::milliseconds rest, std::chrono::milliseconds whole);

 private:
  KeptCall kept_;
  comm::ProfilerEvent event_;
  ForkMark mark_;
  Mutex mutex_;
  Condition done_;
  bool is_done_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::exception_ptr failure_ LOCKSTEP_GUARDED_BY(mutex_);
};

// Makes calls one after another, in the order of add() and QueuePlace(): those of add() on a thread, so that
// the network is used while the caller computes.
//
// Dropping a call may drop a tensor that has a Python object, which needs Python's GIL. The thread does so
// without the mutex, because a caller may have the GIL. For the same reason end() does not wait for it: DDP's
// reducer drops its group with the GIL. So the thread shares the queue, and its calls share the parts.
class CallQueue {
 public:
  static void add(const std::shared_ptr<CallQueue>& queue, std::shared_ptr<QueuedCall> call);

  // The thread ends after the calls of the queue; no other is added.
  void end();

  // Whether all calls have ended.
  bool is_empty() {
    const MutexLock lock(mutex_);
    return calls_.empty();
  }

  // The place of a call that the caller's thread makes.
  class QueuePlace {
   public:
    explicit QueuePlace(CallQueue& queue);
    ~QueuePlace();
    QueuePlace(const QueuePlace&) = delete;
    QueuePlace& operator=(const QueuePlace&) = delete;

    // Until the calls before it have ended.
    void await();

   private:
    CallQueue& queue_;
    const std::shared_ptr<QueuedCall>* place_;
  };

 private:
  void serve();
  bool has_call() const LOCKSTEP_REQUIRES(mutex_) { return !calls_.empty() && calls_.front(); }

  Mutex mutex_;
  Condition changed_;
  // The first one is being made; null: by the caller's thread.
  std::deque<std::shared_ptr<QueuedCall>> calls_ LOCKSTEP_GUARDED_BY(mutex_);
  std::thread thread_ LOCKSTEP_GUARDED_BY(mutex_);  // started by the first asynchronous call
  bool is_idle_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  bool ends_ LOCKSTEP_GUARDED_BY(mutex_) = false;
};

}  // namespace lockstep::backends
