// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace lockstep::nn {

// Threads that stay from one call to the next, with the state that LibTorch and OpenMP keep for each.
class ThreadPool {
 public:
  explicit ThreadPool(std::size_t size);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Calls job(i) on thread i for all i below `count` and waits for them. Returns [i]: the exception of
  // job(i), or null. One call at a time.
  std::vector<std::exception_ptr> run(std::size_t count, const std::function<void(std::size_t)>& job);

 private:
  void work(std::size_t worker);
  void end();

  std::mutex mutex_;
  std::condition_variable begin_;
  std::condition_variable end_;
  std::size_t round_ = 0;
  std::size_t count_ = 0;
  std::size_t busy_ = 0;
  bool ending_ = false;
  const std::function<void(std::size_t)>* job_ = nullptr;
  std::vector<std::exception_ptr> errors_;
  std::vector<std::thread> workers_;
};

}  // namespace lockstep::nn
