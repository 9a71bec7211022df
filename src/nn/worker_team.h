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

// Threads that wait for work. They stay from one call to the next, and with them what LibTorch and OpenMP
// keep for each.
class WorkerTeam {
 public:
  explicit WorkerTeam(std::size_t size);
  ~WorkerTeam();
  WorkerTeam(const WorkerTeam&) = delete;
  WorkerTeam& operator=(const WorkerTeam&) = delete;

  // Calls job(i) on worker i for all i below `count`, and returns when all have ended: [i] is what job(i)
  // threw, or null. One call at a time.
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
