// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <atomic>
#include <vector>

namespace lockstep::shm {

// A collective or a message in progress. The holder of the engine's lock advances it.
class Task {
 public:
  Task() = default;
  virtual ~Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  // Advances without waiting. Returns true when the task is finished.
  virtual bool advance() = 0;
  // The ranks that it waits for, if known.
  virtual std::vector<int> awaited() const = 0;

  bool finished() const { return finished_.load(std::memory_order_acquire); }
  virtual void set_finished() { finished_.store(true, std::memory_order_release); }

 private:
  std::atomic<bool> finished_{false};
};

}  // namespace lockstep::shm
