// SPDX-License-Identifier: BSD-3-Clause
#include "comm/operation_futures.h"

#include <algorithm>
#include <sys/prctl.h>
#include <thread>
#include <utility>

#include "base/limits.h"
#include "comm/gil_use.h"

namespace lockstep::comm {
namespace {

using Clock = std::chrono::steady_clock;
using Future = c10::ivalue::Future;

// Yields before the thread sleeps between two polls.
constexpr int kYields = 200;
constexpr auto kPoll = std::chrono::microseconds(20);
// A call that ends so soon is completed by the thread that asks for its future, which saves two switches
// between threads.
constexpr auto kSoon = std::chrono::microseconds(10);

// The queue whose futures this thread completes.
thread_local const void* served = nullptr;

}  // namespace

bool OperationFutures::Entry::is_due() const {
  return !operation || operation->is_completed() || Clock::now() >= deadline;
}

bool OperationFutures::Entry::is_due_soon() const {
  const auto limit = Clock::now() + kSoon;
  while (!is_due()) {
    if (Clock::now() >= limit) return false;
  }
  return true;
}

void OperationFutures::Entry::complete() {
  try {
    if (operation) operation->end_wait(timeout);
    future->markCompleted(at::IValue(outputs));
  } catch (...) {
    future->setError(std::current_exception());
  }
}

void OperationFutures::abandon_all(std::chrono::milliseconds limit) { GilUse::end_all(limit); }

OperationFutures::~OperationFutures() {
  if (mark_.is_in_child()) {  // where a thread that does not exist may have the mutex
    new std::shared_ptr(std::move(queue_));
    return;
  }
  const MutexLock lock(queue_->mutex);
  queue_->stop = true;
  queue_->changed.notify_all();
}

c10::intrusive_ptr<Future> OperationFutures::future_of(OperationPtr operation,
                                                       std::vector<at::Tensor> outputs,
                                                       std::chrono::milliseconds timeout) {
  auto future = c10::make_intrusive<Future>(c10::ListType::create(c10::TensorType::get()));
  const auto deadline = timeout == kNoTimeout ? Clock::time_point::max() : Clock::now() + timeout;
  Entry entry{std::move(operation), std::move(outputs), future, timeout, deadline};
  if (entry.is_due_soon()) {
    entry.complete();
    return future;
  }
  {
    const MutexLock lock(queue_->mutex);
    queue_->entries.push_back(std::move(entry));
    if (queue_->thread == 0 || served == queue_.get()) start_thread();
  }
  queue_->changed.notify_all();
  return future;
}

// Takes the place of the thread before, which ends after its callbacks.
void OperationFutures::start_thread() {
  lockstep::start_thread<std::thread>("the futures of a group", [queue = queue_, number = ++queue_->thread] {
    queue->run(number);
  }).detach();
}

// After the stop every operation is taken: its backend has left the group.
std::vector<OperationFutures::Entry> OperationFutures::Queue::take_completed() {
  auto taken = std::exchange(entries, {});
  const bool all = stop;
  std::vector<Entry> completed;
  auto pending = std::ranges::subrange(taken);
  {
    const MutexUnlock unlocked(mutex);
    pending =
        std::ranges::stable_partition(taken, [all](const Entry& entry) { return all || entry.is_due(); });
    completed.assign(std::make_move_iterator(taken.begin()), std::make_move_iterator(pending.begin()));
  }
  entries.insert(entries.begin(), std::make_move_iterator(pending.begin()),
                 std::make_move_iterator(pending.end()));
  return completed;
}

void OperationFutures::Queue::run(std::uint64_t number) {
  served = this;
  ::prctl(PR_SET_TIMERSLACK, 1UL);  // the kernel lengthens a thread's sleeps by 50 us otherwise
  MutexLock lock(mutex);
  int idle = 0;
  while (number == thread && (!stop || !entries.empty())) {
    if (entries.empty()) {
      changed.wait(mutex);
      idle = 0;
      continue;
    }
    auto completed = take_completed();
    lock.unlock();
    const bool progress = !completed.empty();
    {
      const GilUse now;
      if (!now.is_allowed()) {
        lock.lock();
        // Their tensors may have Python objects, which cannot be dropped any more.
        new std::vector<Entry>(std::move(completed));
        new std::vector<Entry>(std::exchange(entries, {}));
        return;
      }
      for (auto& entry : completed) entry.complete();
      completed.clear();
    }
    idle = progress ? 0 : idle + 1;
    idle <= kYields ? std::this_thread::yield() : std::this_thread::sleep_for(kPoll);
    lock.lock();
  }
}

}  // namespace lockstep::comm
