// SPDX-License-Identifier: BSD-3-Clause
#include "nn/thread_pool.h"

namespace lockstep::nn {

ThreadPool::ThreadPool(std::size_t size) {
  workers_.reserve(size);
  try {
    for (std::size_t worker = 0; worker < size; ++worker) {
      workers_.emplace_back([this, worker] { work(worker); });
    }
  } catch (...) {
    end();
    throw;
  }
}

ThreadPool::~ThreadPool() { end(); }

void ThreadPool::end() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  begin_.notify_all();
  for (auto& worker : workers_) worker.join();
}

std::vector<std::exception_ptr> ThreadPool::run(std::size_t count,
                                                const std::function<void(std::size_t)>& job) {
  std::unique_lock lock(mutex_);
  job_ = &job;
  count_ = count;
  busy_ = count;
  errors_.assign(count, nullptr);
  ++round_;
  begin_.notify_all();
  end_.wait(lock, [this] { return busy_ == 0; });
  return std::move(errors_);
}

void ThreadPool::work(std::size_t worker) {
  std::size_t done = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    begin_.wait(lock, [&] { return ending_ || round_ != done; });
    if (ending_) return;
    done = round_;
    if (worker >= count_) continue;
    const auto& job = *job_;
    lock.unlock();
    std::exception_ptr error;
    try {
      job(worker);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    errors_[worker] = std::move(error);
    if (--busy_ == 0) end_.notify_one();
  }
}

}  // namespace lockstep::nn
