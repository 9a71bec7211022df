// SPDX-License-Identifier: BSD-3-Clause
#include "comm/operation_futures.h"

#include <algorithm>
#include <chrono>

namespace lockstep::comm {
namespace {

using Clock = std::chrono::steady_clock;
using Future = c10::ivalue::Future;

// Yields before the thread sleeps between two polls.
constexpr int kYields = 200;
constexpr auto kPoll = std::chrono::microseconds(20);
constexpr auto kNow = std::chrono::milliseconds(1);

}  // namespace

bool OperationFutures::Entry::is_due() const {
  return !operation || operation->is_completed() || Clock::now() >= deadline;
}

void OperationFutures::Entry::complete() {
  try {
    if (operation) operation->wait(kNow);
    future->markCompleted(at::IValue(outputs));
  } catch (...) {
    future->setError(std::current_exception());
  }
}

OperationFutures::~OperationFutures() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (!thread_.joinable()) return;
  // A callback on the thread itself may drop the last reference.
  thread_.get_id() == std::this_thread::get_id() ? thread_.detach() : thread_.join();
}

c10::intrusive_ptr<Future> OperationFutures::future_of(OperationPtr operation,
                                                       std::vector<at::Tensor> outputs,
                                                       std::chrono::milliseconds timeout) {
  auto future = c10::make_intrusive<Future>(c10::ListType::create(c10::TensorType::get()));
  const auto deadline = timeout == kNoTimeout ? Clock::time_point::max() : Clock::now() + timeout;
  Entry entry{std::move(operation), std::move(outputs), future, deadline};
  if (entry.is_due()) {
    entry.complete();
    return future;
  }
  const std::lock_guard lock(mutex_);
  entries_.push_back(std::move(entry));
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  changed_.notify_all();
  return future;
}

std::vector<OperationFutures::Entry> OperationFutures::take_completed(std::unique_lock<std::mutex>& lock) {
  auto entries = std::exchange(entries_, {});
  lock.unlock();
  const auto pending =
      std::ranges::stable_partition(entries, [](const Entry& entry) { return entry.is_due(); });
  std::vector<Entry> completed(std::make_move_iterator(entries.begin()),
                               std::make_move_iterator(pending.begin()));
  lock.lock();
  entries_.insert(entries_.begin(), std::make_move_iterator(pending.begin()),
                  std::make_move_iterator(pending.end()));
  return completed;
}

void OperationFutures::run() {
  std::unique_lock lock(mutex_);
  int idle = 0;
  while (!stop_) {
    if (entries_.empty()) {
      changed_.wait(lock);
      idle = 0;
      continue;
    }
    auto completed = take_completed(lock);
    lock.unlock();
    for (auto& entry : completed) entry.complete();
    const bool progress = !completed.empty();
    completed.clear();
    idle = progress ? 0 : idle + 1;
    idle <= kYields ? std::this_thread::yield() : std::this_thread::sleep_for(kPoll);
    lock.lock();
  }
}

}  // namespace lockstep::comm
