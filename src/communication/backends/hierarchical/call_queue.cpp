// SPDX-License-Identifier: BSD-3-Clause
#include "backends/hierarchical/call_queue.h"

#include <algorithm>
#include <utility>

#include "base/deadline.h"
#include "base/limits.h"
#include "base/throw_error.h"
#include "comm/gil_use.h"

namespace lockstep::backends {
namespace {

constexpr std::chrono::milliseconds kQueuePollPeriod{20};  // of a wait, at what may end it

// False if the interpreter ends.
bool drop(std::shared_ptr<QueuedCall> call) {
  const comm::GilUse now;
  if (!now.is_allowed()) {
    new std::shared_ptr(std::move(call));
    return false;
  }
  call.reset();
  return true;
}

}  // namespace

void QueuedCall::run() {
  std::exception_ptr failure;
  try {
    make();
  } catch (...) {
    failure = std::current_exception();
  }
  const MutexLock lock(mutex_);
  failure_ = failure;
  is_done_ = true;
  done_.notify_all();
}

bool QueuedCall::is_completed() {
  if (mark_.is_in_child()) return true;
  const MutexLock lock(mutex_);
  return is_done_;
}

void QueuedCall::await_run(std::chrono::milliseconds rest, std::chrono::milliseconds whole) {
  mark_.refuse_wait_in_child();
  const Deadline deadline(rest);
  MutexLock lock(mutex_);
  while (!done_.wait_for(
      mutex_, whole == kNoTimeout ? kQueuePollPeriod : std::min(kQueuePollPeriod, deadline.remaining()),
      [this]() LOCKSTEP_REQUIRES(mutex_) { return is_done_; })) {
    if (whole != kNoTimeout && deadline.expired())
      throw_error<TimeoutError>("it is in progress after {} ms", whole.count());
    lock.unlock();
    check_wait();
    lock.lock();
  }
  if (failure_) std::rethrow_exception(failure_);
}

void CallQueue::add(const std::shared_ptr<CallQueue>& queue, std::shared_ptr<QueuedCall> call) {
  const MutexLock lock(queue->mutex_);
  if (!queue->thread_.joinable()) {
    queue->thread_ =
        start_thread<std::thread>("asynchronous calls of hierarchical", [queue] { queue->serve(); });
  }
  queue->calls_.push_back(std::move(call));
  queue->changed_.notify_all();
}

void CallQueue::end() {
  std::thread thread;
  bool is_over = false;
  {
    const MutexLock lock(mutex_);
    ends_ = true;
    changed_.notify_all();
    is_over = is_idle_ && calls_.empty();
    thread.swap(thread_);
  }
  if (thread.joinable()) is_over ? thread.join() : thread.detach();
}

CallQueue::QueuePlace::QueuePlace(CallQueue& queue) : queue_(queue) {
  const MutexLock lock(queue.mutex_);
  place_ = &queue.calls_.emplace_back();
}

CallQueue::QueuePlace::~QueuePlace() {
  await();
  const MutexLock lock(queue_.mutex_);
  queue_.calls_.pop_front();
  queue_.changed_.notify_all();
}

void CallQueue::QueuePlace::await() {
  const MutexLock lock(queue_.mutex_);
  queue_.changed_.wait(
      queue_.mutex_, [this]() LOCKSTEP_REQUIRES(queue_.mutex_) { return &queue_.calls_.front() == place_; });
}

void CallQueue::serve() {
  MutexLock lock(mutex_);
  while (true) {
    is_idle_ = true;
    changed_.wait(mutex_, [this]() LOCKSTEP_REQUIRES(mutex_) { return ends_ || has_call(); });
    if (!has_call()) return;
    is_idle_ = false;
    auto call = calls_.front();
    lock.unlock();
    call->run();
    lock.lock();
    calls_.pop_front();
    changed_.notify_all();
    lock.unlock();
    if (!drop(std::move(call))) return;
    lock.lock();
  }
}

}  // namespace lockstep::backends
