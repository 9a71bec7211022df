// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace lockstep::simulated {

using Work = std::function<void()>;

// A point in a stream's work. Any thread may call.
class Fence {
 public:
  void reach();
  void wait();
  bool reached();
  std::chrono::steady_clock::time_point when();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool reached_ = false;
  std::chrono::steady_clock::time_point when_;
};

// Work in the order in which it was added, in a thread of its own, which begins with the first work and lives
// as long as the process. Each begins late by up to LOCKSTEP_SIMULATED_GPU_DELAY_US microseconds, so that
// what does not wait for it is caught. Any thread may call.
class Stream {
 public:
  Stream(int device, int priority, bool is_default = false)
      : device_(device), priority_(priority), is_default_(is_default) {}
  int device() const { return device_; }
  int priority() const { return priority_; }
  bool is_default() const { return is_default_; }  // which cannot be captured
  void add(Work work);
  std::shared_ptr<Fence> mark();  // reached when all that was added has ended
  bool idle();

 private:
  void run();

  const int device_;
  const int priority_;
  const bool is_default_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> works_;
  std::size_t unfinished_ = 0;
  bool started_ = false;
};

// What is known to come before something in a capture: how much of each stream's work.
using Dependencies = std::map<const Stream*, std::size_t>;

struct Node {
  const Stream* stream;
  Work work;
  Dependencies dependencies;  // without the node itself
};

struct Graph {
  std::vector<Node> nodes;
  std::vector<std::shared_ptr<void>> kept;  // destroyed with it
};

// Runs the nodes in one of the orders that their streams and events allow, another each time.
void run_in_some_order(const Graph& graph);

}  // namespace lockstep::simulated
